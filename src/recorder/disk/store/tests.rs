use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;
use crate::recorder::history::{Chart, IncidentGpu, Kind};

fn incident(id: &str, points: usize) -> Arc<Incident> {
    let memory = Chart { step_seconds: 1.0, points: vec![(1.0, Some(1), Some(2), None); points] };
    let incident = serde_json::json!({
        "version": VERSION, "id": id, "kind": Kind::NearLimit, "at": 5.0, "complete": true, "gpu": IncidentGpu::default(),
        "summary": "GPU 0 became nearly full.", "processes": [], "more_processes": 0, "grew_most": [], "events": [],
        "memory": memory,
    });
    Arc::new(serde_json::from_value(incident).unwrap())
}

fn settings(folder: &TempDir, max_files: usize, max_bytes: u64) -> StoreSettings {
    StoreSettings { path: folder.path().to_owned(), max_files, max_bytes }
}

const ROOM: Room = Room { of_kind: 8, count: 16, bytes: 1 << 20 };

/// Starts the writer, and returns it with the incidents from earlier runs.
fn open_with(settings: StoreSettings, faults: &Arc<Faults>) -> (DiskWriter<Incident>, Vec<Incident>) {
    let mut earlier = Vec::new();
    let store = open(settings, ROOM, faults.clone(), |incident, _| earlier.push(incident)).unwrap();
    (store, earlier)
}

fn read_all(settings: &StoreSettings, room: Room, faults: &Faults) -> Vec<String> {
    let mut earlier = Vec::new();
    Folder(settings).read(room, faults, |incident, _| earlier.push(incident.id));
    earlier
}

/// An incident of a kind on a device.
fn of(id: &str, uuid: &str, tenant: Option<&str>) -> Incident {
    let gpu = IncidentGpu { uuid: uuid.to_owned(), ..IncidentGpu::default() };
    Incident { gpu, tenant: tenant.map(str::to_owned), ..(*incident(id, 1)).clone() }
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
    let (store, earlier) = open_with(settings(&folder, 10, 1 << 20), &faults);
    assert_eq!(earlier, []);
    let written = [incident("20260101T000000000-a", 3), incident("20260102T000000000-b", 5)];
    written.iter().for_each(|incident| store.write(incident));
    store.close();
    let (store, earlier) = open_with(settings(&folder, 10, 1 << 20), &faults);
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
    for n in 0..2_000 {
        folder_of.write(&incident(&format!("{n:08}"), 1)).unwrap();
        if n % 1000 == 0 {
            assert!(names(&folder).len() <= 7);
        }
    }
    assert_eq!(names(&folder).len(), 7);
    assert!(["incident-folder.json", "notes.json"].iter().all(|other| names(&folder).iter().any(|name| name == other)));
    assert_eq!(read_all(&limits, ROOM, &faults), (1995..2_000).map(|n| format!("{n:08}")).collect::<Vec<_>>());
    let small = settings(&folder, 100, 3_000);
    assert!(Folder(&small).write(&incident("z", 5_000)).unwrap_err().to_string().contains("recorder.max-disk-mib"));
    assert_eq!(names(&folder).len(), 7, "nothing is removed for one that is too large");
    Folder(&small).write(&incident("99999999", 50)).unwrap();
    let total: u64 = Folder(&small).files().unwrap().iter().map(|file| file.claim.bytes).sum();
    assert!(total <= 3_000, "{total}");
}

#[test]
fn one_tenant_does_not_push_the_incidents_of_others_from_the_disk() {
    let (folder, faults) = (tempfile::tempdir().unwrap(), Faults::default());
    let limits = settings(&folder, 40, 1 << 20);
    Folder(&limits).write(&of("lost", "GPU-9", None)).unwrap();
    Folder(&limits).write(&of("ada", "GPU-0", Some("user:ada"))).unwrap();
    for n in 0..200 {
        let uuid = format!("GPU-{}", n % 4);
        Folder(&limits).write(&of(&format!("eve-{n}"), &uuid, Some("user:eve"))).unwrap();
    }
    let kept: Vec<_> = Folder(&limits).files().unwrap().into_iter().map(|file| file.id).collect();
    assert_eq!((&*kept[0], &*kept[1], &**kept.last().unwrap(), kept.len()), ("lost", "ada", "eve-199", 40));
    let room = Room { of_kind: 2, count: 6, bytes: 1 << 20 };
    let restored = read_all(&limits, room, &faults);
    assert_eq!((&*restored[0], restored.len()), ("lost", 6), "nor from what is read at the start: {restored:?}");
    assert!(restored.contains(&"ada".to_owned()));
}

#[test]
fn the_order_does_not_depend_on_the_clock_and_a_repeat_replaces_its_file() {
    let (folder, faults) = (tempfile::tempdir().unwrap(), Faults::default());
    let limits = settings(&folder, 4, 1 << 20);
    // A file without a number is the oldest, and the clock was far ahead when the first of the others was written.
    fs::write(folder.path().join("incident-20990101T000000000-gpu0-near_limit.json"), "{}").unwrap();
    for id in ["20980101T000000000-gpu0-near_limit", "20260101T000000000-gpu0-near_limit", "20260102T0-gpu0-near_limit"]
    {
        Folder(&limits).write(&incident(id, 1)).unwrap();
    }
    let again = Incident { count: 2, ..(*incident("20980101T000000000-gpu0-near_limit", 1)).clone() };
    Folder(&limits).write(&again).unwrap();
    Folder(&limits).write(&incident("20260103T0-gpu0-near_limit", 1)).unwrap();
    let expected = ["20260101T000000000-gpu0-near_limit", "20260102T0-gpu0-near_limit", "20260103T0-gpu0-near_limit"];
    assert_eq!(read_all(&limits, ROOM, &faults), expected);
    assert_eq!(faults.count(Source::Recorder, Reason::Malformed), 1, "the file without a number is no incident");
}

#[test]
fn what_is_read_at_the_start_is_bounded_and_a_file_that_is_too_long_is_counted() {
    let (folder, faults) = (tempfile::tempdir().unwrap(), Faults::default());
    let limits = settings(&folder, 100, 1 << 30);
    (0..10).for_each(|n| Folder(&limits).write(&incident(&n.to_string(), 1000)).unwrap());
    let length = Folder(&limits).files().unwrap()[0].claim.bytes;
    Folder(&limits).write(&incident("long", 100_000)).unwrap();
    let room = Room { bytes: 3 * length + 9, ..ROOM };
    assert_eq!(read_all(&limits, room, &faults), ["7", "8", "9"]);
    assert_eq!(faults.count(Source::Recorder, Reason::Malformed), 1);
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
    assert_eq!(read_all(&limits, ROOM, &faults).len(), 1);
    let names = names(&folder);
    assert!(names.len() == 3 && names[0].starts_with("incident-0000000001-20260101T000000000-a-"), "{names:?}");
    assert_eq!(names[1..], ["incident-20260102.json", "incident-20260103.json"]);
    let counted: Vec<_> = faults.counts().filter(|(_, _, count)| *count > 0).collect();
    assert_eq!(counted, [(Source::Recorder, Reason::Malformed, 2)]);
}

#[test]
fn a_folder_that_cannot_be_written_loses_incidents_and_nothing_else() {
    let (folder, faults) = (tempfile::tempdir().unwrap(), Arc::new(Faults::default()));
    let missing = StoreSettings { path: folder.path().join("missing"), max_files: 5, max_bytes: 1 << 20 };
    let (store, earlier) = open_with(missing, &faults);
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
    assert_eq!(mode(&Folder(&limits).files().unwrap()[0].path), 0o600, "names of users and processes are in it");
}
