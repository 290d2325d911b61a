//! A script for Slurm as an operator would edit it, with a `logger` that keeps what the script says in syslog.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{ended, install};

/// A script of `deploy/slurm`, in a folder whose `bin` is the first of its PATH.
pub(crate) struct Script {
    path: PathBuf,
    syslog: PathBuf,
}

impl Script {
    /// With each of these parts replaced.
    pub(crate) fn of(name: &str, folder: &Path, replaced: &[(&str, String)]) -> Self {
        let (bin, syslog) = (folder.join("bin"), folder.join("syslog"));
        if !bin.join("logger").exists() {
            fs::create_dir_all(&bin).unwrap();
            let logger = format!("#!/bin/sh\nprintf '%s\\n' \"$*\" >>'{}'\n", syslog.display());
            write(&bin.join("logger"), &logger);
        }
        let mut text =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/slurm").join(name)).unwrap();
        let own = ("PATH=/usr/sbin:", format!("PATH={}:/usr/sbin:", bin.display()));
        for (before, after) in [own].iter().chain(replaced) {
            assert!(text.contains(before), "{before}: {text}");
            text = text.replace(before, after);
        }
        let path = folder.join(name);
        write(&path, &text);
        Self { path, syslog }
    }

    /// Runs it with these variables alone, and returns what it said in syslog. It never fails, and says nothing else.
    pub(crate) fn run(&self, variables: &[(&str, &str)]) -> String {
        let mut command = Command::new(&self.path);
        let ended = ended(command.env_clear().stdin(Stdio::null()).envs(variables.iter().copied()));
        assert_eq!((ended.status, ended.out.as_str(), ended.err.as_str()), (Some(0), "", ""));
        let said = fs::read_to_string(&self.syslog).unwrap_or_default();
        let _ = fs::remove_file(&self.syslog);
        said
    }
}

fn write(path: &Path, text: &str) {
    let source = path.with_extension("source");
    fs::write(&source, text).unwrap();
    install(&source, path);
}
