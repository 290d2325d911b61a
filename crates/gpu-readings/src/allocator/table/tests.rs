use std::time::Instant;

use super::super::message::{self, Message};
use super::*;
use crate::snapshot::{MemoryRole, RESERVED_MARGIN};

const WINDOW: Duration = Duration::from_secs(60);

struct World {
    table: Table,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self { table: Table::new(WINDOW), now: Instant::now() }
    }

    fn connect(&mut self, uid: u32, pid: u32) -> u64 {
        let id = self.table.admit(uid, self.now).unwrap();
        self.table.identify(id, ProcessId { pid, start_ticks: Some(1) }).unwrap();
        id
    }

    fn send(&mut self, id: u64, line: &str) -> Result<(), Reason> {
        match message::parse(line.as_bytes()).unwrap() {
            Message::Report(report) => self.table.report(id, &report, self.now),
            Message::Measurement(measured) => self.table.measure(id, &measured),
            Message::OutOfMemory(failed) => self.table.failure(id, &failed, true, self.now).map(drop),
            Message::Sites(looked) => self.table.look(id, &looked, self.now),
            Message::Growth(growth) => self.table.grow(id, &growth),
            Message::Modules(divided) => self.table.divide(id, &divided),
            other => panic!("{other:?}"),
        }
    }

    fn report(&mut self, id: u64, more: &str) -> Result<(), Reason> {
        self.send(id, &format!(r#"{{"type":"report","framework":"pytorch","device":"GPU-1",{more}}}"#))
    }

    fn reports(&mut self, pid: u32) -> Vec<AllocatorReport> {
        self.table.part(self.now).reports(ProcessId { pid, start_ticks: Some(1) }).to_vec()
    }

    fn measure(&mut self, id: u64, device: &str, name: &str) -> Result<(), Reason> {
        self.send(
            id,
            &format!(
                r#"{{"type":"measurement","framework":"jax","device":"{device}","name":"{name}","peak_bytes":5}}"#
            ),
        )
    }
}

#[test]
fn a_report_changes_only_what_it_names() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    world.report(id, r#""allocated_bytes":5,"reserved_bytes":9,"retries":2"#).unwrap();
    world.report(id, r#""allocated_bytes":6,"limit_bytes":20,"retries":null"#).unwrap();
    let [report] = &world.reports(7)[..] else { panic!("one report") };
    let figures = report.figures;
    assert_eq!(
        (figures.allocated, figures.reserved, figures.limit, figures.retries),
        (Some(6), Some(9), Some(20), None)
    );
    assert_eq!((figures.peak, figures.window_peak), (Some(6), Some(6)));
}

#[test]
fn a_report_that_contradicts_itself_changes_nothing() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    world.report(id, r#""allocated_bytes":5,"reserved_bytes":9,"retries":2"#).unwrap();
    let before = world.reports(7);
    let refused = [
        r#""allocated_bytes":10"#,
        r#""reserved_bytes":4"#,
        r#""allocated_bytes":6,"high_bytes":5"#,
        r#""high_bytes":4"#,
        r#""peak_bytes":4"#,
        r#""peak_reserved_bytes":8"#,
        r#""limit_bytes":7,"retries":1"#,
    ];
    for more in refused {
        assert_eq!(world.report(id, more), Err(Reason::Inconsistent), "{more}");
    }
    assert_eq!(world.reports(7), before);
}

#[test]
fn peaks_stay_when_the_client_forgets_them_and_leave_their_window() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    world.report(id, r#""allocated_bytes":5,"high_bytes":50,"peak_bytes":70"#).unwrap();
    world.report(id, r#""allocated_bytes":6,"peak_bytes":6"#).unwrap();
    let peaks = |world: &mut World| {
        let figures = world.reports(7)[0].figures;
        (figures.window_peak, figures.peak)
    };
    assert_eq!(peaks(&mut world), (Some(50), Some(70)));
    world.now += WINDOW + Duration::from_secs(1);
    assert!(world.reports(7).is_empty(), "nothing was heard");
    world.table.hear(id, world.now);
    assert_eq!(peaks(&mut world), (Some(6), Some(70)), "what is still in use stays in the window");
    world.report(id, r#""allocated_bytes":null,"peak_bytes":null"#).unwrap();
    world.now += 2 * WINDOW;
    world.table.hear(id, world.now);
    assert_eq!(peaks(&mut world), (None, Some(70)));
}

#[test]
fn the_latest_connection_of_a_process_counts_and_takes_its_values_along() {
    let mut world = World::new();
    let (first, second) = (world.connect(0, 7), world.connect(0, 7));
    world.report(second, r#""allocated_bytes":2"#).unwrap();
    world.report(first, r#""allocated_bytes":1"#).unwrap();
    let allocated = |world: &mut World| world.reports(7).first().and_then(|report| report.figures.allocated);
    assert_eq!(allocated(&mut world), Some(2));
    world.table.close(second);
    assert_eq!(allocated(&mut world), Some(1));
    world.table.close(first);
    assert_eq!(allocated(&mut world), None);
    assert!(world.table.is_empty());
}

#[test]
fn silence_ends_the_values_until_the_next_message() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    world.report(id, r#""allocated_bytes":1"#).unwrap();
    world.now += Duration::from_millis(5001);
    assert!(world.reports(7).is_empty());
    assert!(world.table.hear(id, world.now), "it was stale");
    assert!(!world.table.hear(id, world.now));
    assert_eq!(world.reports(7).len(), 1);
}

#[test]
fn connections_are_limited_for_each_process_and_user_and_in_all() {
    let mut world = World::new();
    for _ in 0..limits::CONNECTIONS_OF_PROCESS {
        world.connect(0, 7);
    }
    let id = world.table.admit(0, world.now).unwrap();
    assert_eq!(world.table.identify(id, ProcessId { pid: 7, start_ticks: Some(1) }), Err(Reason::TooManyConnections));
    assert_eq!(world.table.identify(id, ProcessId { pid: 7, start_ticks: Some(2) }), Ok(()), "another process");
    let mut admitted = 5;
    while world.table.admit(0, world.now).is_some() {
        admitted += 1;
    }
    assert_eq!(admitted, limits::CONNECTIONS_OF_USER);
    let others = (1..u32::MAX).take_while(|&uid| world.table.admit(uid, world.now).is_some()).count();
    assert_eq!(others, limits::CONNECTIONS - limits::CONNECTIONS_OF_USER);
    world.table.close(1);
    assert!(world.table.admit(0, world.now).is_some());
}

#[test]
fn a_user_that_connects_again_and_again_is_refused_for_a_while() {
    let mut world = World::new();
    let connect = |world: &mut World| {
        let id = world.table.admit(5, world.now);
        id.inspect(|&id| drop(world.table.close(id))).is_some()
    };
    let granted = (0..5000).filter(|_| connect(&mut world)).count();
    assert_eq!(granted, 1000);
    world.table.forget_users(world.now);
    assert!(!connect(&mut world), "the user is not forgotten");
    world.now += Duration::from_secs(60);
    world.table.forget_users(world.now);
    assert!(world.table.users.is_empty());
    assert!(connect(&mut world));
}

#[test]
fn messages_beyond_the_rate_are_dropped_and_those_of_one_user_wait() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    let turns = |world: &mut World, id| (0..1200).map(|_| world.table.turn(id, world.now)).collect::<Vec<_>>();
    let first = turns(&mut world, id);
    assert!(first[..1000].iter().all(|turn| *turn == Turn::Read));
    assert!(first[1000..].iter().all(|turn| *turn == Turn::Drop));
    let stranger = world.connect(1, 8);
    for pid in 0..9 {
        let id = world.connect(0, pid);
        turns(&mut world, id);
    }
    let id = world.connect(0, 100);
    assert_eq!(world.table.turn(id, world.now), Turn::Wait);
    assert_eq!(world.table.turn(stranger, world.now), Turn::Read);
}

#[test]
fn devices_frameworks_and_names_are_limited() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    let send = |world: &mut World, framework: &str, device: usize| {
        world.send(
            id,
            &format!(r#"{{"type":"report","framework":"{framework}","device":"GPU-{device}","allocated_bytes":1}}"#),
        )
    };
    for (index, framework) in ["a", "b", "c", "d"].into_iter().enumerate() {
        (0..16).for_each(|device| send(&mut world, framework, device).unwrap());
        assert_eq!(world.reports(7).len(), 16 * (index + 1));
    }
    assert_eq!(send(&mut world, "a", 16), Err(Reason::TooManyKeys));
    let other = world.connect(0, 8);
    for framework in ["a", "b", "c", "d"] {
        world.send(other, &format!(r#"{{"type":"report","framework":"{framework}","device":"GPU-1"}}"#)).unwrap();
    }
    let fifth = world.send(other, r#"{"type":"report","framework":"e","device":"GPU-1"}"#);
    assert_eq!(fifth, Err(Reason::TooManyKeys));

    let third = world.connect(0, 9);
    (0..limits::NAMES).for_each(|name| world.measure(third, "GPU-1", &name.to_string()).unwrap());
    assert_eq!(world.measure(third, "GPU-1", "one more"), Err(Reason::TooManyKeys));
    assert_eq!(world.measure(third, "GPU-1", "3"), Ok(()), "a known name");
    let on = |world: &mut World, device: &str| {
        (0..limits::NAMES).filter(|name| world.measure(third, device, &name.to_string()).is_ok()).count()
    };
    let granted: usize = (2..22).map(|device| on(&mut world, &format!("GPU-{device}"))).sum();
    let keys = |world: &World| world.table.connections[&third].keys;
    assert!(granted < 20 * limits::NAMES && keys(&world) <= limits::KEYS, "{granted}");
    assert_eq!(world.table.keys, world.table.users[&0].keys);
}

#[test]
fn the_keys_of_one_user_are_limited_and_come_back_with_the_connection() {
    let mut world = World::new();
    let mut ids = Vec::new();
    let full = (0..).find(|&pid| {
        let id = world.connect(0, pid);
        ids.push(id);
        (0..limits::PAIRS).any(|device| {
            let line = format!(r#"{{"type":"report","framework":"a","device":"GPU-{device}"}}"#);
            world.send(id, &line) == Err(Reason::TooManyKeys)
        })
    });
    assert_eq!(full, Some((limits::KEYS_OF_USER / limits::PAIRS) as u32));
    let stranger = world.connect(1, 1);
    assert_eq!(world.report(stranger, r#""allocated_bytes":1"#), Ok(()), "another user has room");
    ids.into_iter().for_each(|id| drop(world.table.close(id)));
    assert_eq!((world.table.keys, world.table.users[&0].keys), (1, 0));
}

#[test]
fn regions_keep_their_highest_peak() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    let mut measure = |name: &str, peak: u64| {
        world
            .send(
                id,
                &format!(
                    r#"{{"type":"measurement","framework":"jax","device":"GPU-1","name":"{name}","peak_bytes":{peak}}}"#
                ),
            )
            .unwrap();
    };
    measure("step", 5);
    measure("step", 9);
    measure("step", 7);
    measure("forward", 3);
    let regions: Vec<_> = world.reports(7)[0].regions.iter().map(|r| (r.name.to_string(), r.peak)).collect();
    assert_eq!(regions, [("forward".to_owned(), 3), ("step".to_owned(), 9)]);
}

#[test]
fn failed_allocations_of_one_user_are_limited() {
    let mut world = World::new();
    let (one, other, stranger) = (world.connect(0, 1), world.connect(0, 2), world.connect(1, 3));
    let line = r#"{"type":"out_of_memory","framework":"jax","device":"GPU-1","requested_bytes":5}"#;
    assert_eq!((0..15).filter(|_| world.send(one, line).is_ok()).count(), 15);
    assert_eq!((0..15).filter(|_| world.send(other, line).is_ok()).count(), 5);
    assert_eq!(world.send(other, line), Err(Reason::TooManyMessages));
    assert_eq!(world.send(stranger, line), Ok(()));
}

#[test]
fn a_connection_that_ends_leaves_its_highest_values_and_its_last_counters() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    world.report(id, r#""allocated_bytes":5,"reserved_bytes":9,"high_bytes":8,"retries":2"#).unwrap();
    world.report(id, r#""allocated_bytes":1,"reserved_bytes":2,"retries":3"#).unwrap();
    world.send(id, r#"{"type":"report","framework":"jax","device":"GPU-2","peak_reserved_bytes":70}"#).unwrap();
    world.measure(id, "GPU-3", "a region alone leaves nothing").unwrap();
    let outcomes = world.table.close(id).unwrap().outcomes();
    let outcome = |framework: &str, device: &str| Outcome {
        process: ProcessId { pid: 7, start_ticks: Some(1) },
        device: device.into(),
        framework: framework.into(),
        allocated_peak: None,
        reserved_peak: None,
        retries: None,
        out_of_memory: None,
    };
    let pytorch =
        Outcome { allocated_peak: Some(8), reserved_peak: Some(9), retries: Some(3), ..outcome("pytorch", "GPU-1") };
    assert_eq!(outcomes, [pytorch, Outcome { reserved_peak: Some(70), ..outcome("jax", "GPU-2") }]);
    assert!(world.table.close(id).is_none(), "once");
}

fn look(device: &str, more: &str) -> String {
    format!(r#"{{"type":"sites","framework":"pytorch","device":"{device}",{more}}}"#)
}

#[test]
fn a_look_replaces_the_one_before_and_is_not_shown_when_it_is_old() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    world.report(id, r#""allocated_bytes":50,"reserved_bytes":90"#).unwrap();
    let site = |name: &str, role: &str, bytes: u64| format!(r#"{{"site":"{name}","role":"{role}","bytes":{bytes}}}"#);
    let sites = [site("a.py:1 f", "gradients", 5), site("a.py:1 f", "new", 1), site("a.py:1 f", "newer", 2)].join(",");
    let first =
        format!(r#""roles":{{"gradients":5,"parameters":0,"new":2,"newer":3}},"sites":[{sites}],"other_bytes":4"#);
    world.send(id, &look("GPU-1", &first)).unwrap();
    let shown = world.reports(7)[0].sites.clone().unwrap();
    assert_eq!(
        shown.roles().collect::<Vec<_>>(),
        [(MemoryRole::Parameters, 0), (MemoryRole::Gradients, 5), (MemoryRole::Unknown, 5)]
    );
    let sites: Vec<_> = shown.sites.iter().map(|site| (&*site.site, site.role, site.bytes)).collect();
    // Two roles that are not known here are one.
    assert_eq!(sites, [("a.py:1 f", MemoryRole::Gradients, 5), ("a.py:1 f", MemoryRole::Unknown, 3)]);
    assert_eq!((shown.other, shown.unrecorded, shown.total()), (Some(4), None, 12));
    let failed = r#"{"type":"out_of_memory","framework":"pytorch","device":"GPU-1","requested_bytes":1}"#;
    let Message::OutOfMemory(failed) = message::parse(failed.as_bytes()).unwrap() else { panic!("a failure") };
    assert_eq!(world.table.failure(id, &failed, true, world.now).unwrap().sites, Some(shown));
    world.send(id, &look("GPU-1", r#""unknown_bytes":8"#)).unwrap();
    let shown = world.reports(7)[0].sites.clone().unwrap();
    assert_eq!((shown.sites.len(), shown.unrecorded, shown.roles().count()), (0, Some(8), 0));
    world.now += Duration::from_secs(121);
    world.table.hear(id, world.now);
    assert_eq!(world.reports(7)[0].sites, None);
    assert_eq!(world.table.failure(id, &failed, true, world.now).unwrap().sites, None);
}

#[test]
fn a_look_cannot_claim_more_than_the_allocator_has_and_changes_nothing_then() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    let most = RESERVED_MARGIN + 90;
    world.report(id, r#""allocated_bytes":50,"reserved_bytes":90"#).unwrap();
    world.send(id, &look("GPU-1", &format!(r#""other_bytes":{most}"#))).unwrap();
    for more in [format!(r#""other_bytes":{most},"unknown_bytes":1"#), format!(r#""roles":{{"other":{}}}"#, most + 1)] {
        assert_eq!(world.send(id, &look("GPU-1", &more)), Err(Reason::Inconsistent));
    }
    assert_eq!(world.reports(7)[0].sites.as_ref().unwrap().other, Some(most));
}

#[test]
fn growth_and_modules_belong_to_the_look_before_them() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    world.report(id, r#""allocated_bytes":50,"reserved_bytes":90"#).unwrap();
    let of = |kind: &str, more: &str| format!(r#"{{"type":"{kind}","framework":"pytorch","device":"GPU-1",{more}}}"#);
    let site = |line: u8, bytes: u64| format!(r#"{{"site":"a.py:{line} f","role":"activations","bytes":{bytes}}}"#);
    let growth = of("growth", &format!(r#""seconds":12,"sites":[{},{}]"#, site(1, 5), site(2, 7)));
    let modules = r#""modules":[{"module":"head","bytes":2},{"module":"blocks.0","bytes":9}],"other_bytes":3"#;
    let modules = of("modules", modules);
    for early in [&growth, &modules] {
        assert_eq!(world.send(id, early), Err(Reason::Inconsistent), "there was no look: {early}");
    }
    world.send(id, &look("GPU-1", r#""other_bytes":20"#)).unwrap();
    let keys = world.table.keys;
    world.send(id, &growth).unwrap();
    world.send(id, &modules).unwrap();
    assert_eq!(world.table.keys, keys, "the look counts for them");
    let shown = |world: &mut World| world.reports(7)[0].sites.clone().unwrap();
    let seen = shown(&mut world);
    let grew = seen.growth.as_ref().unwrap();
    let sites: Vec<_> = grew.sites.iter().map(|site| (&*site.site, site.role, site.bytes)).collect();
    let role = MemoryRole::Activations;
    assert_eq!((grew.seconds, sites), (12, vec![("a.py:2 f", role, 7), ("a.py:1 f", role, 5)]), "the largest first");
    let held: Vec<_> = seen.modules.iter().map(|module| (&*module.module, module.bytes)).collect();
    assert_eq!((held, seen.other_modules), (vec![("blocks.0", 9), ("head", 2)], Some(3)));
    // What is more than the allocator may have changes nothing.
    let most = RESERVED_MARGIN + 90;
    let too_much = [
        of("growth", &format!(r#""seconds":1,"sites":[{},{}]"#, site(1, most), site(2, 1))),
        of("modules", &format!(r#""modules":[{{"module":"m","bytes":{most}}}],"other_bytes":1"#)),
    ];
    for line in &too_much {
        assert_eq!(world.send(id, line), Err(Reason::Inconsistent), "{line}");
    }
    assert_eq!(shown(&mut world), seen);
    // Each replaces the one before, and a failure takes both along.
    world.send(id, &of("growth", r#""seconds":3,"sites":[]"#)).unwrap();
    world.send(id, &of("modules", &format!(r#""modules":[{{"module":"m","bytes":{most}}}]"#))).unwrap();
    let seen = shown(&mut world);
    assert_eq!((seen.growth.as_ref().unwrap().seconds, seen.modules.len(), seen.other_modules), (3, 1, None));
    let failed = r#"{"type":"out_of_memory","framework":"pytorch","device":"GPU-1","requested_bytes":1}"#;
    let Message::OutOfMemory(failed) = message::parse(failed.as_bytes()).unwrap() else { panic!("a failure") };
    assert_eq!(world.table.failure(id, &failed, true, world.now).unwrap().sites, Some(seen));
    // The next look starts again without them.
    world.send(id, &look("GPU-1", r#""other_bytes":20"#)).unwrap();
    let seen = shown(&mut world);
    assert_eq!((&seen.growth, &*seen.modules, seen.other_modules), (&None, &[][..], None));
}

#[test]
fn the_line_that_asked_is_taken_only_with_call_sites() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    let line = r#"{"type":"out_of_memory","framework":"pytorch","device":"GPU-1","requested_bytes":9,"largest_free_block_bytes":4,
        "site":"a.py:1 f","frames":["linear.py:2 g","a.py:1 f"]}"#;
    let Message::OutOfMemory(failed) = message::parse(line.as_bytes()).unwrap() else { panic!("a failure") };
    let mut told = |with_sites| world.table.failure(id, &failed, with_sites, world.now).unwrap();
    let (with, without) = (told(true), told(false));
    assert_eq!((with.asked_by.as_deref(), with.largest_free_block), (Some("a.py:1 f"), Some(4)));
    assert_eq!(with.frames.iter().map(|frame| &**frame).collect::<Vec<_>>(), ["linear.py:2 g", "a.py:1 f"]);
    assert_eq!((without.asked_by, without.frames.len(), without.largest_free_block), (None, 0, Some(4)));
}

#[test]
fn looks_use_a_bounded_number_of_keys_and_a_refused_one_uses_none() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    let devices: Vec<String> = (0..64).map(|device| format!("GPU-{device}")).collect();
    let report = |device: &str| format!(r#"{{"type":"report","framework":"pytorch","device":"{device}","retries":1}}"#);
    devices.iter().for_each(|device| world.send(id, &report(device)).unwrap());
    let looked = devices.iter().filter(|device| world.send(id, &look(device, r#""other_bytes":1"#)).is_ok()).count();
    assert_eq!(looked, (limits::KEYS - 64) / limits::KEYS_OF_LOOK);
    assert_eq!(world.reports(7).iter().filter(|report| report.sites.is_some()).count(), looked);
    assert_eq!(world.send(id, &look("GPU-64", r#""other_bytes":1"#)), Err(Reason::Inconsistent), "it was not reported");
    // A known pair goes on.
    world.send(id, &look("GPU-0", r#""other_bytes":2"#)).unwrap();
    world.table.close(id);
    assert_eq!(world.table.keys, 0);
}

#[test]
fn a_client_that_names_ever_new_call_sites_has_a_bounded_number_of_series() {
    let mut world = World::new();
    let id = world.connect(0, 7);
    world.report(id, r#""allocated_bytes":50,"reserved_bytes":90"#).unwrap();
    let mut names = HashSet::new();
    for number in 0..1000 {
        let site = format!(r#""sites":[{{"site":"a.py:{number} f","role":"other","bytes":5}}],"other_bytes":1"#);
        world.send(id, &look("GPU-1", &site)).unwrap();
        let shown = world.reports(7)[0].sites.clone().unwrap();
        assert_eq!(shown.total(), 6);
        names.extend(shown.sites.iter().map(|site| site.site.clone()));
    }
    assert_eq!(names.len(), limits::SITES);
}
