use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::super::incident::{Chart, IncidentGpu, Kind};
use super::*;

fn incident(id: &str, points: usize) -> Arc<Incident> {
    Arc::new(Incident {
        version: VERSION,
        id: id.to_owned(),
        kind: Kind::NearLimit,
        at: 5.0,
        complete: true,
        summary: "GPU 0 became nearly full.".to_owned(),
        host: None,
        simulated: false,
        gpu: IncidentGpu::default(),
        out_of_memory: None,
        peak: None,
        processes: Vec::new(),
        more_processes: 0,
        grew_most: Vec::new(),
        events: Vec::new(),
        memory: Chart { step_seconds: 1.0, points: vec![(1.0, Some(1), Some(2), None); points] },
    })
}

fn settings(folder: &TempDir, max_files: usize, max_bytes: u64) -> StoreSettings {
    StoreSettings { path: folder.path().to_owned(), max_files, max_bytes }
}

fn names(folder: &TempDir) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn incidents_survive_a_restart_whole() {
    let (folder, faults) = (tempfile::tempdir().unwrap(), Arc::new(Faults::default()));
    let (store, earlier) = Store::open(settings(&folder, 10, 1 << 20), 16, faults.clone()).unwrap();
    assert_eq!(earlier, []);
    let written = [incident("20260101T000000000-a", 3), incident("20260102T000000000-b", 5)];
    written.iter().for_each(|incident| store.write(incident));
    store.close();
    let (store, earlier) = Store::open(settings(&folder, 10, 1 << 20), 16, faults.clone()).unwrap();
    assert_eq!(earlier, written.map(|incident| (*incident).clone()));
    store.close();
    assert_eq!(faults.counts().map(|(_, _, count)| count).sum::<u64>(), 0);
}

#[test]
fn the_oldest_files_go_first_and_other_files_stay() {
    let (folder, faults) = (tempfile::tempdir().unwrap(), Arc::new(Faults::default()));
    fs::write(folder.path().join("notes.json"), "mine").unwrap();
    fs::create_dir(folder.path().join("incident-folder.json")).unwrap();
    let limits = settings(&folder, 5, 1 << 20);
    let folder_of = Folder(&limits);
    for n in 0..10_000 {
        folder_of.write(&incident(&format!("{n:08}"), 1)).unwrap();
        if n % 1000 == 0 {
            assert!(names(&folder).len() <= 7);
        }
    }
    let kept: Vec<_> = (9995..10_000).map(|n| format!("incident-{n:08}.json")).collect();
    assert_eq!(names(&folder), [&kept[..], &["incident-folder.json".into(), "notes.json".into()]].concat());
    let small = settings(&folder, 100, 3_000);
    Folder(&small).write(&incident("99999999", 50)).unwrap();
    let total: u64 = Folder(&small).files(SUFFIX).unwrap().iter().map(|(_, bytes)| bytes).sum();
    assert!(total <= 3_000, "{total}");
    assert!(Folder(&small).write(&incident("z", 5_000)).unwrap_err().to_string().contains("recorder.max-disk-mib"));
    assert_eq!(Folder(&small).read(16, &faults).len(), 0, "all others are removed for one that is too large");
}

#[test]
fn what_a_crash_left_behind_is_removed_and_what_is_not_ours_is_left() {
    let (folder, faults) = (tempfile::tempdir().unwrap(), Arc::new(Faults::default()));
    let limits = settings(&folder, 10, 1 << 20);
    Folder(&limits).write(&incident("20260101T000000000-a", 1)).unwrap();
    fs::write(folder.path().join("incident-Xy12.json.partial"), "{\"version\":1,").unwrap();
    fs::write(folder.path().join("incident-20260102.json"), "{\"version\":1,").unwrap();
    let mut later = (*incident("20260103T000000000-c", 1)).clone();
    later.version = VERSION + 1;
    fs::write(folder.path().join("incident-20260103.json"), serde_json::to_vec(&later).unwrap()).unwrap();
    let earlier = Folder(&limits).read(16, &faults);
    assert_eq!(earlier.len(), 1);
    assert_eq!(
        names(&folder),
        ["incident-20260101T000000000-a.json", "incident-20260102.json", "incident-20260103.json"]
    );
    let counted: Vec<_> = faults.counts().filter(|(_, _, count)| *count > 0).collect();
    assert_eq!(counted, [(Source::Recorder, Reason::Malformed, 2)]);
}

#[test]
fn a_folder_that_cannot_be_written_loses_incidents_and_nothing_else() {
    let (folder, faults) = (tempfile::tempdir().unwrap(), Arc::new(Faults::default()));
    let missing = StoreSettings { path: folder.path().join("missing"), max_files: 5, max_bytes: 1 << 20 };
    let (store, earlier) = Store::open(missing, 16, faults.clone()).unwrap();
    assert_eq!(earlier, []);
    store.write(&incident("a", 1));
    store.close();
    let mut counted: Vec<_> =
        faults.counts().filter(|(_, _, count)| *count > 0).map(|(_, reason, n)| (reason.label(), n)).collect();
    counted.sort();
    assert_eq!(counted, [("unreadable", 1), ("unwritable", 1)]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let limits = settings(&folder, 5, 1 << 20);
    Folder(&limits).write(&incident("b", 1)).unwrap();
    assert_eq!(mode(&folder.path().join("incident-b.json")), 0o600, "names of users and processes are in it");
}
