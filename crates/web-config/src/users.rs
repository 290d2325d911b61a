//! The users that a web-config file names, each with the bcrypt hash of the user's password.
//!
//! Invariant: every hash is well formed and has a bounded cost. An unknown name gets a decoy hash, which no password
//! matches, so that checking a password takes as long for an unknown name as for a user.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr as _;

use bcrypt::HashParts;

use super::error::Problem;

/// The highest cost that is accepted: 256 times the work of the usual 10, for each password that is tried.
const MAX_COST: u32 = 18;
/// The lowest cost that gets a note: 32 times the work of the usual 10.
const SLOW_COST: u32 = 15;

/// Users and hashes. This type contains secrets, so it has no `Debug`.
#[derive(Default)]
pub(super) struct Users {
    hashes: HashMap<Vec<u8>, String>,
    costs: Vec<u32>,
    decoys: RandomState,
}

/// The hash to check a password against.
pub(super) struct Candidate {
    pub(super) hash: String,
    /// Whether there is such a user.
    pub(super) known: bool,
}

impl Users {
    pub(super) fn read(written: &BTreeMap<String, String>, notes: &mut Vec<String>) -> Result<Self, Problem> {
        let mut users = Self::default();
        for (name, hash) in written {
            let key = format!("basic_auth_users.{}", name.escape_default());
            let cost = cost(hash).map_err(|why| Problem::refused(&key, why))?;
            if cost >= SLOW_COST {
                let times = 1_u32 << (cost - 10);
                notes
                    .push(format!("{key}: cost {cost} takes {times} times the work of cost 10, for each new password"));
            }
            users.hashes.insert(name.as_bytes().to_vec(), hash.clone());
            users.costs.push(cost);
        }
        Ok(users)
    }

    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The hash of a user, or a decoy. A decoy has the cost of some user's hash, always the same for the same name.
    pub(super) fn candidate(&self, name: &[u8]) -> Candidate {
        match self.hashes.get(name) {
            Some(hash) => Candidate { hash: hash.clone(), known: true },
            None => Candidate { hash: self.decoy(name), known: false },
        }
    }

    fn decoy(&self, name: &[u8]) -> String {
        let pick = self.decoys.hash_one(name) as usize % self.costs.len().max(1);
        let cost = self.costs.get(pick).copied().unwrap_or(bcrypt::DEFAULT_COST);
        format!("$2b${cost:02}${}{}", ".".repeat(22), ".".repeat(31))
    }
}

/// The cost of a hash, or why it is not a hash. The message never contains the hash.
fn cost(hash: &str) -> Result<u32, String> {
    if !["$2a$", "$2b$", "$2y$"].iter().any(|prefix| hash.starts_with(prefix)) {
        return Err(
            "is not a bcrypt hash, which begins with $2a$, $2b$ or $2y$; make one with `htpasswd -nBC 10`".to_owned()
        );
    }
    let parts = HashParts::from_str(hash).map_err(|error| format!("is not a bcrypt hash: {error}"))?;
    match parts.get_cost() {
        cost @ 4..=MAX_COST => Ok(cost),
        cost => Err(format!("the cost {cost} is not between 4 and {MAX_COST}; use 10 to 12")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(hash: &str) -> Result<usize, String> {
        let mut notes = Vec::new();
        let written = BTreeMap::from([("alice".to_owned(), hash.to_owned())]);
        Users::read(&written, &mut notes).map(|_| notes.len()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn only_bcrypt_hashes_of_a_bounded_cost_are_accepted() {
        let good = bcrypt::hash("secret", 4).unwrap();
        let with = |from: &str, to: &str| good.replacen(from, to, 1);
        for prefix in ["$2a$", "$2b$", "$2y$"] {
            assert_eq!(read(&with("$2b$", prefix)), Ok(0));
        }
        assert_eq!(read(&with("$04$", "$18$")), Ok(1));
        for (hash, message) in [
            ("doe".to_owned(), "is not a bcrypt hash"),
            (with("$2b$", "$2x$"), "begins with $2a$, $2b$ or $2y$"),
            (with("$04$", "$19$"), "not between 4 and 18"),
            (with("$04$", "$03$"), "not between 4 and 18"),
            (with("$04$", "$xx$"), "not a number"),
            (good[..59].to_owned(), "is not a bcrypt hash"),
            (format!("{good}x"), "is not a bcrypt hash"),
            (format!("$2b$04${}", "!".repeat(53)), "is not a bcrypt hash"),
        ] {
            let why = read(&hash).unwrap_err();
            assert!(why.starts_with("basic_auth_users.alice: ") && why.contains(message), "{why}");
            assert!(!why.contains(&hash) || hash == "doe", "{why}");
        }
    }

    #[test]
    fn an_unknown_name_takes_as_long_as_a_user() {
        let hash = bcrypt::hash("secret", 5).unwrap();
        let users = Users::read(&BTreeMap::from([("alice".to_owned(), hash.clone())]), &mut Vec::new()).ok().unwrap();
        let alice = users.candidate(b"alice");
        assert!(alice.known && alice.hash == hash);
        let decoy = users.candidate(b"mallory");
        assert!(!decoy.known);
        assert_eq!(cost(&decoy.hash), Ok(5));
        assert!(!bcrypt::verify("", &decoy.hash).unwrap());
        assert!(users.candidate(b"mallory").hash == decoy.hash);
    }
}
