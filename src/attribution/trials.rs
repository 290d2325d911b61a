//! What holds of processes, users and cgroups whatever their names are.

#![allow(clippy::panic, reason = "a trial panics where what must hold does not")]

mod cgroup;
mod name;
mod passwd;

pub use cgroup::cgroup;
#[cfg(test)]
pub(super) use cgroup::{assert_sound, assert_stands};
pub use name::process;
pub use passwd::passwd;

#[cfg(test)]
mod tests {
    use crate::trials::drive;

    const ROOT: &str = env!("CARGO_MANIFEST_DIR");

    #[test]
    fn no_cgroup_makes_up_an_owner() {
        assert!(drive(ROOT, "cgroup", 1_500, super::cgroup) > 500);
    }

    #[test]
    fn no_process_chooses_more_than_its_name() {
        assert!(drive(ROOT, "process", 3_000, super::process) > 1_000);
    }

    #[test]
    fn no_passwd_line_names_another_user() {
        assert!(drive(ROOT, "passwd", 3_000, super::passwd) > 1_000);
    }
}
