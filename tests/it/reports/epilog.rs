//! The epilog for Slurm: what it appends to the output of a job, and what it says in syslog when it appends nothing.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

use super::*;
use crate::scripts::Script;

/// With `vram` in a folder of the PATH, as it is installed.
#[test]
fn the_epilog_appends_the_report_or_says_why_not_and_never_fails() {
    let exporter = Machine::new(&format!("{IDLE}{}", trainer(501, 0, &growing(10, 30)))).export(&[]);
    report(&exporter, "the job", is_in("running"));
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink(tool_program(), bin.join("vram")).unwrap();
    let own = fs::metadata(folder.path()).unwrap().uid();
    // As root, the output belongs to another user, who can reach it.
    let user = if own == 0 { 65_534 } else { own };
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = folder.path().join("slurm-77.out");
    let protected = folder.path().join("protected");
    for path in [&output, &protected] {
        fs::write(path, "epoch 1\n").unwrap();
    }
    if own == 0 {
        chown(&output, Some(user), Some(user)).unwrap();
        fs::set_permissions(&protected, fs::Permissions::from_mode(0o600)).unwrap();
    }
    // Runs the epilog with these lines replaced, and returns what is in the output and in syslog afterwards.
    let run_edited = |url: &str, replaced: &[(&str, String)], variables: &[(&str, &str)]| {
        let url = ("URL=http://localhost:9836\n", format!("URL={url}\n"));
        let script = Script::of("vram-exporter-epilog.sh", folder.path(), &[&[url][..], replaced].concat());
        let user = user.to_string();
        let of_job = [("SLURM_JOB_UID", &*user), ("SLURM_JOB_GID", &*user)];
        let said = script.run(&[&of_job[..], variables].concat());
        (fs::read_to_string(&output).unwrap(), said)
    };
    let run = |url: &str, job: &str, stdout: Option<&Path>| {
        let stdout = stdout.map(|path| ("SLURM_JOB_STDOUT", path.to_str().unwrap()));
        run_edited(url, &[], &[("SLURM_JOB_ID", job)].into_iter().chain(stdout).collect::<Vec<_>>())
    };
    let untouched = |(output, said): (String, String), priority: &str, why: &str| {
        assert_eq!(output, "epoch 1\n", "{said}");
        assert!(said.starts_with(&format!("-t vram-exporter-epilog -p daemon.{priority} -- job ")), "{said}");
        assert!(said.lines().count() == 1 && said.contains(why), "{why}: {said}");
    };
    // Nothing to report, nowhere to write to, and nobody who answers.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    untouched(run(&url(&exporter), "78", Some(&output)), "info", "no report about job 78");
    untouched(run(&url(&exporter), "77", None), "info", "SLURM_JOB_STDOUT is not set");
    untouched(run(&format!("http://{closed}"), "77", Some(&output)), "warning", &closed.to_string());
    untouched(run_edited(&url(&exporter), &[], &[]), "warning", "SLURM_JOB_ID is not set");
    let job = [("SLURM_JOB_ID", "77"), ("SLURM_JOB_STDOUT", output.to_str().unwrap())];
    let without_group = [job[0], job[1], ("SLURM_JOB_GID", "")];
    untouched(run_edited(&url(&exporter), &[], &without_group), "warning", "SLURM_JOB_GID is not set");
    let absent = folder.path().join("slurm-%j.out\nforged line\u{1b}[31m");
    untouched(run(&url(&exporter), "77", Some(&absent)), "warning", "not a regular file");
    assert!(!absent.exists());
    // The program is elsewhere, or is not there.
    let elsewhere = [("PROGRAM=\n", "PROGRAM=/nonexistent/vram\n".to_owned())];
    untouched(run_edited(&url(&exporter), &elsewhere, &job), "warning", "/nonexistent/vram cannot be executed");
    let name = [("command -v vram", "command -v vram-of-no-folder".to_owned())];
    let advice = "/usr/bin:/sbin:/bin:/usr/local/bin; set PROGRAM in";
    untouched(run_edited(&url(&exporter), &name, &job), "warning", advice);
    if own == 0 {
        untouched(run(&url(&exporter), "77", Some(&protected)), "warning", "ermission denied");
        assert_eq!(fs::read_to_string(&protected).unwrap(), "epoch 1\n", "written with the rights of the user only");
    }
    let (text, said) = run(&url(&exporter), "77", Some(&output));
    assert!(text.starts_with("epoch 1\n\nGPU memory of slurm:77, user ada"), "{text}");
    assert!(text.contains("judging by this one run") && said.is_empty(), "{text} {said}");
}
