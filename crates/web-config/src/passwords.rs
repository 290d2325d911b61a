//! Checks passwords against bcrypt hashes, one at a time and with a short queue in which
//! clients take turns, and remembers the verdicts.
//!
//! Invariant: no plaintext password is kept. A verdict is remembered under an HMAC of name, hash and password, whose
//! key never leaves this process. Wrong passwords cannot evict the verdicts on correct ones.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use super::credentials::Credentials;
use super::error::Problem;
use super::turns::Turns;
use super::users::Users;
use parking_lot::Mutex;
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::SystemRandom;

/// How many verdicts of each kind are remembered.
const MAX_REMEMBERED: usize = 256;

/// Checks passwords and remembers the verdicts.
#[derive(Debug)]
pub(super) struct Passwords {
    key: hmac::Key,
    verdicts: Mutex<Verdicts>,
    turns: Arc<Turns>,
}

/// Too many passwords are already waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Busy;

impl Passwords {
    pub(super) fn new() -> Result<Self, Problem> {
        let key = hmac::Key::generate(HMAC_SHA256, &SystemRandom::new()).map_err(|_| Problem::NoRandomness)?;
        Ok(Self { key, verdicts: Mutex::default(), turns: Arc::default() })
    }

    /// Whether these are the name and the password of a user. `client`: the address that sent them, if it is known.
    pub(super) async fn verify(
        self: &Arc<Self>,
        users: &Users,
        given: Credentials,
        client: Option<IpAddr>,
    ) -> Result<bool, Busy> {
        let candidate = users.candidate(&given.user);
        let tag = self.tag(&[&given.user, candidate.hash.as_bytes(), &given.password]);
        if let Some(verdict) = self.remembered(&tag) {
            return Ok(verdict);
        }
        let turn = self.turns.wait(client).await.ok_or(Busy)?;
        // Another request may have had the same password checked in the meantime.
        if let Some(verdict) = self.remembered(&tag) {
            return Ok(verdict);
        }
        let passwords = self.clone();
        let checking = tokio::task::spawn_blocking(move || {
            // As in Go, bytes after the 72nd do not count. A file with an invalid hash is never accepted.
            let matches = bcrypt::verify(&given.password, &candidate.hash).unwrap_or(false);
            let verdict = matches && candidate.known;
            passwords.verdicts.lock().remember(tag, verdict);
            // Held here, not by the request, because the work goes on even if the client disconnects.
            drop(turn);
            verdict
        });
        Ok(checking.await.unwrap_or(false))
    }

    fn remembered(&self, tag: &Tag) -> Option<bool> {
        self.verdicts.lock().recall(tag)
    }

    /// Each part is preceded by its length, so that different splits of the same bytes have different tags.
    fn tag(&self, parts: &[&[u8]]) -> Tag {
        let mut context = hmac::Context::with_key(&self.key);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut tag = Tag::default();
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }
}

type Tag = [u8; 32];

/// The latest tags of each kind, the oldest first. There are so few that looking at all takes much less time than one bcrypt hash.
#[derive(Debug, Default)]
struct Verdicts {
    right: VecDeque<Tag>,
    wrong: VecDeque<Tag>,
}

impl Verdicts {
    fn recall(&self, tag: &Tag) -> Option<bool> {
        if self.right.contains(tag) {
            return Some(true);
        }
        self.wrong.contains(tag).then_some(false)
    }

    fn remember(&mut self, tag: Tag, verdict: bool) {
        let tags = if verdict { &mut self.right } else { &mut self.wrong };
        if !tags.contains(&tag) {
            tags.push_back(tag);
        }
        if tags.len() > MAX_REMEMBERED {
            tags.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::turns::MAX_WAITING;
    use super::*;
    use std::collections::BTreeMap;

    fn users(names: &[(&str, &str)]) -> Users {
        let hashed = |&(name, password): &(&str, &str)| (name.to_owned(), bcrypt::hash(password, 4).unwrap());
        Users::read(&names.iter().map(hashed).collect::<BTreeMap<_, _>>(), &mut Vec::new()).ok().unwrap()
    }

    fn given(user: &str, password: &str) -> Credentials {
        Credentials { user: user.as_bytes().to_vec(), password: password.as_bytes().to_vec() }
    }

    #[tokio::test]
    async fn a_verdict_is_the_same_the_second_time() {
        let users = users(&[("alice", "alice123"), ("bob", "b")]);
        let passwords = Arc::new(Passwords::new().unwrap());
        for _ in 0..2 {
            for (user, password, right) in [
                ("alice", "alice123", true),
                ("alice", "alice1234", false),
                ("alice", "", false),
                ("bob", "b", true),
                ("bob", "alice123", false),
                ("mallory", "alice123", false),
                ("", "", false),
            ] {
                assert_eq!(passwords.verify(&users, given(user, password), None).await, Ok(right), "{user}:{password}");
            }
        }
        let verdicts = passwords.verdicts.lock();
        assert_eq!((verdicts.right.len(), verdicts.wrong.len()), (2, 5));
    }

    #[tokio::test]
    async fn bytes_after_the_72nd_do_not_count() {
        let long = "x".repeat(72);
        let users = users(&[("alice", &long)]);
        let passwords = Arc::new(Passwords::new().unwrap());
        assert_eq!(passwords.verify(&users, given("alice", &format!("{long}y")), None).await, Ok(true));
        assert_eq!(passwords.verify(&users, given("alice", &long[1..]), None).await, Ok(false));
    }

    #[test]
    fn parts_of_a_tag_do_not_run_together() {
        let passwords = Passwords::new().unwrap();
        assert_ne!(passwords.tag(&[b"ab", b"c"]), passwords.tag(&[b"a", b"bc"]));
        assert_ne!(passwords.tag(&[b"a"]), Passwords::new().unwrap().tag(&[b"a"]), "each process has its own key");
    }

    #[test]
    fn wrong_passwords_do_not_evict_right_ones() {
        let mut verdicts = Verdicts::default();
        verdicts.remember([255; 32], true);
        for n in 0..4 * MAX_REMEMBERED as u64 {
            let mut tag = Tag::default();
            tag[..8].copy_from_slice(&n.to_le_bytes());
            verdicts.remember(tag, false);
        }
        assert_eq!(verdicts.recall(&[255; 32]), Some(true));
        assert_eq!(verdicts.wrong.len(), MAX_REMEMBERED);
        assert_eq!(verdicts.recall(&Tag::default()), None, "the oldest is evicted");
    }

    #[tokio::test]
    async fn the_queue_of_passwords_is_bounded() {
        let users = users(&[("alice", "a")]);
        let passwords = Arc::new(Passwords::new().unwrap());
        assert_eq!(passwords.verify(&users, given("alice", "a"), None).await, Ok(true));
        let held = passwords.turns.wait(None).await.unwrap();
        let tries: Vec<_> =
            (0..MAX_WAITING + 3).map(|n| passwords.verify(&users, given("alice", &n.to_string()), None)).collect();
        let mut tries = futures_util::future::join_all(tries);
        assert!(futures_util::FutureExt::now_or_never(&mut tries).is_none());
        assert_eq!(
            passwords.verify(&users, given("alice", "a"), None).await,
            Ok(true),
            "a known password need not wait"
        );
        assert_eq!(passwords.verify(&users, given("alice", "b"), None).await, Err(Busy));
        drop(held);
        let verdicts = tries.await;
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == Ok(false)).count(), MAX_WAITING);
        assert_eq!(passwords.verify(&users, given("alice", "b"), None).await, Ok(false), "there is room again");
    }
}
