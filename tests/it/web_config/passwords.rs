//! Which requests are admitted: users, and the rate limit.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use web_config::{Guard, Refusal};

use super::pki::{Pki, open};

/// An `Authorization: Basic` header for a name and a password.
pub(crate) fn basic(user: &str, password: &str) -> HeaderMap {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut value = String::from("Basic ");
    for group in format!("{user}:{password}").as_bytes().chunks(3) {
        let bits = (0..3).fold(0, |bits, n| bits << 8 | u32::from(*group.get(n).unwrap_or(&0)));
        for n in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * n) & 63) as usize];
            value.push(if n <= group.len() { char::from(digit) } else { '=' });
        }
    }
    HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(&value).unwrap())])
}

#[test]
fn a_header_is_written_as_it_should() {
    assert_eq!(basic("Aladdin", "open sesame")[header::AUTHORIZATION], "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
}

#[tokio::test]
async fn users_are_admitted_with_their_own_passwords_only() {
    let pki = Pki::new();
    let guard = open(&pki.fixture("users.good.yml")).unwrap();
    // Twice: the first time each password is checked, the second time the remembered verdict is used.
    for _ in 0..2 {
        assert_eq!(guard.admit(&basic("alice", "wonderland")).await, Ok(()));
        assert_eq!(guard.admit(&basic("bob", "builder")).await, Ok(()));
        for (user, password) in
            [("alice", "builder"), ("alice", ""), ("", ""), ("eve", "wonderland"), ("Alice", "wonderland")]
        {
            assert_eq!(guard.admit(&basic(user, password)).await, Err(Refusal::Unauthorized), "{user}:{password}");
        }
        assert_eq!(guard.admit(&HeaderMap::new()).await, Err(Refusal::Unauthorized));
    }
    assert_eq!(Refusal::Unauthorized.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(Refusal::Unauthorized.challenge().unwrap(), "Basic");
    assert_eq!((Refusal::Busy.status(), Refusal::Busy.challenge()), (StatusCode::SERVICE_UNAVAILABLE, None));
}

/// No one can forge a verdict by moving characters between the name, the hash and the password (CVE-2022-46146).
#[tokio::test]
async fn a_remembered_verdict_cannot_be_planted() {
    let hash = bcrypt::hash("wonderland", 4).unwrap();
    let pki = Pki::new();
    let guard = pki.guard(&format!("basic_auth_users:\n  alice: {hash}\n")).unwrap();
    assert_eq!(guard.admit(&basic("alice", "wonderland")).await, Ok(()));
    for (user, password) in [
        (format!("alice{hash}"), "wonderland".to_owned()),
        ("alice".to_owned(), format!("{hash}wonderland")),
        ("alic".to_owned(), format!("e{hash}wonderland")),
    ] {
        assert_eq!(guard.admit(&basic(&user, &password)).await, Err(Refusal::Unauthorized));
    }
}

#[tokio::test]
async fn a_client_that_guesses_keeps_no_other_address_from_its_first_verdict() {
    let pki = Pki::new();
    let guard: &Guard = &open(&pki.fixture("users.good.yml")).unwrap();
    let [guesser, scraper] = [[127, 0, 0, 3], [127, 0, 0, 2]].map(|address| Some(address.into()));
    let guesses = (0..60).map(|n| async move { guard.admit_from(&basic("alice", &format!("{n}")), guesser).await });
    // Polled in this order: the queue is full when the scraper comes.
    let scrape = async { guard.admit_from(&basic("alice", "wonderland"), scraper).await };
    let (refused, admitted) = futures_util::future::join(futures_util::future::join_all(guesses), scrape).await;
    assert_eq!(admitted, Ok(()));
    assert!(refused.contains(&Err(Refusal::Busy)), "the queue was full");
}

#[tokio::test]
async fn concurrent_requests_get_their_own_verdicts() {
    let pki = Pki::new();
    let guard: &Guard = &open(&pki.fixture("users.good.yml")).unwrap();
    assert_eq!(guard.admit(&basic("alice", "wonderland")).await, Ok(()));
    assert_eq!(guard.admit(&basic("alice", "wrong")).await, Err(Refusal::Unauthorized));
    let asked = (0..300).map(|n| async move {
        let right = n % 2 == 0;
        let verdict = guard.admit(&basic("alice", if right { "wonderland" } else { "wrong" })).await;
        assert_eq!(verdict, if right { Ok(()) } else { Err(Refusal::Unauthorized) });
    });
    futures_util::future::join_all(asked).await;
}

#[tokio::test]
async fn requests_above_the_rate_limit_are_refused() {
    let pki = Pki::new();
    let verdicts = async |shape: &str| {
        let guard = open(&pki.fixture(shape)).unwrap();
        let mut verdicts = Vec::new();
        for _ in 0..5 {
            verdicts.push(guard.admit(&HeaderMap::new()).await);
        }
        verdicts
    };
    let full = Err(Refusal::TooManyRequests);
    assert_eq!(verdicts("rate_nanoseconds.good.yml").await, [Ok(()), Ok(()), Ok(()), full, full]);
    assert_eq!(verdicts("rate_nothing.good.yml").await, [full; 5]);
    assert_eq!(verdicts("rate_none.good.yml").await, [Ok(()); 5]);
    assert_eq!(Refusal::TooManyRequests.status(), StatusCode::TOO_MANY_REQUESTS);
}
