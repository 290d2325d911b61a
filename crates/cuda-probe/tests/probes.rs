//! Probes on a driver without a GPU: what is seen of its calls, and what is counted where something is not seen.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

mod rig;

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_probe::{
    ArrayShape, Call, Error, Event, Library, LibraryId, Mode, NoLibrary, OUT_OF_MEMORY, Place, Probes, Settings,
};
use cuda_probe::{Unfinished, find_libraries};
use fake_libcuda::{CAPACITY, FIRST_ADDRESS, FIRST_CONTEXT, INVALID_VALUE, PITCH};
use rig::{DriverFile, Edges, PATIENCE, WAYS, events, eventually, load, output, program, watch};
use workspace_skips::probes::in_first_pid_namespace;

const GIB: u64 = 1 << 30;

fn all() -> Settings {
    Settings::new(Mode::All)
}

/// A small ring: 65,536 bytes, 431 calls.
fn small() -> Settings {
    let mut settings = all();
    settings.ring_bytes = 64 << 10;
    settings
}

fn calls(events: &[Event]) -> Vec<(Call, i32)> {
    events.iter().map(|event| (event.call, event.result)).collect()
}

#[test]
fn every_call_is_an_event_with_its_arguments() {
    for way in WAYS {
        let copy = DriverFile::new();
        let Some((mut probes, attached)) = watch(&copy, all(), Some(way)) else { continue };
        assert_eq!(attached.absent, ["cuMemAllocFromPoolAsync_ptsz", "cuMemFreeAsync_ptsz"]);
        assert_eq!(attached.symbols.len(), 31);
        let driver = copy.driver();
        let at = |size| Some(FIRST_ADDRESS + size);
        let context = |device| Some(FIRST_CONTEXT + device);
        driver.cuMemAlloc_v2(3 * GIB);
        driver.cuMemAlloc_v2(CAPACITY + 1);
        driver.allocate_nowhere(7);
        driver.cuMemAllocPitch_v2(300, 16);
        driver.cuMemAllocManaged(GIB, 1);
        driver.cuMemAllocAsync(5, 0x51);
        driver.cuMemAllocAsync_ptsz(6, 2);
        driver.cuMemAllocFromPoolAsync(7, 0x70, 0x51);
        driver.cuMemCreate(2 << 20, 1, 3);
        driver.cuMemCreate(2 << 20, 2, 0);
        driver.cuArrayCreate_v2(640, 480, 4);
        driver.cuArray3DCreate_v2([64, 32, 16], 1);
        driver.open_and_import();
        driver.cuMemFree_v2(FIRST_ADDRESS + 1);
        driver.cuMemFreeAsync(FIRST_ADDRESS + 5, 0x51);
        driver.cuMemRelease(FIRST_ADDRESS + 9);
        driver.cuArrayDestroy(FIRST_ADDRESS + 1);
        driver.cuMemMap(0x10, 0x20, 0x30, FIRST_ADDRESS, 0);
        driver.cuMemUnmap(FIRST_ADDRESS, 0x20);
        driver.cuMemPoolTrimTo(0x70, 4096);
        driver.cuCtxSetCurrent(FIRST_CONTEXT);
        driver.cuCtxPushCurrent_v2(FIRST_CONTEXT + 1);
        driver.cuCtxPopCurrent_v2();
        driver.cuDevicePrimaryCtxRetain(1);
        driver.cuCtxCreate_v2(0, 2);
        driver.create_contexts(3);
        driver.cuCtxDestroy_v2(FIRST_CONTEXT + 3);
        driver.cuDevicePrimaryCtxRelease_v2(1);
        driver.cuDevicePrimaryCtxReset_v2(2);
        driver.cuStreamCreate(1);
        driver.cuStreamCreateWithPriority(1, -1);
        driver.cuStreamDestroy_v2(FIRST_ADDRESS);

        let shape = |height, depth, channels| ArrayShape { width: 64, height, depth, format: 0x20, channels };
        let expected = [
            (Call::Allocate { size: 3 * GIB, address: at(3 * GIB) }, 0),
            (Call::Allocate { size: CAPACITY + 1, address: None }, OUT_OF_MEMORY),
            (Call::Allocate { size: 7, address: None }, INVALID_VALUE),
            (Call::AllocatePitch { width: 300, height: 16, pitch: Some(PITCH), address: at(16 * PITCH) }, 0),
            (Call::AllocateManaged { size: GIB, address: at(GIB) }, 0),
            (Call::AllocateAsync { size: 5, stream: 0x51, address: at(5) }, 0),
            (Call::AllocateAsync { size: 6, stream: 2, address: at(6) }, 0),
            (Call::AllocateFromPool { size: 7, pool: 0x70, stream: 0x51, address: at(7) }, 0),
            (Call::Create { size: 2 << 20, place: Place::Device(3), handle: at(2 << 20) }, 0),
            (Call::Create { size: 2 << 20, place: Place::Host, handle: at(2 << 20) }, 0),
            (Call::CreateArray { shape: Some(ArrayShape { width: 640, ..shape(480, 0, 4) }), array: at(1) }, 0),
            (Call::CreateArray { shape: Some(shape(32, 16, 1)), array: at(2) }, 0),
            (Call::OpenShared { address: at(5) }, 0),
            (Call::Import { handle: at(6) }, 0),
            (Call::Free { address: FIRST_ADDRESS + 1 }, 0),
            (Call::FreeAsync { address: FIRST_ADDRESS + 5, stream: 0x51 }, 0),
            (Call::Release { handle: FIRST_ADDRESS + 9 }, 0),
            (Call::DestroyArray { array: FIRST_ADDRESS + 1 }, 0),
            (Call::Map { address: 0x10, size: 0x20, offset: 0x30, handle: FIRST_ADDRESS }, 0),
            (Call::Unmap { address: FIRST_ADDRESS, size: 0x20 }, 0),
            (Call::TrimPool { pool: 0x70, keep: 4096 }, 0),
            (Call::SetContext { context: FIRST_CONTEXT }, 0),
            (Call::PushContext { context: FIRST_CONTEXT + 1 }, 0),
            (Call::PopContext { popped: context(0) }, 0),
            (Call::RetainPrimaryContext { device: 1, context: context(1) }, 0),
            (Call::CreateContext { device: 2, context: context(2) }, 0),
            (Call::CreateContext { device: 3, context: context(3) }, 0),
            (Call::CreateContext { device: 3, context: context(3) }, 0),
            (Call::DestroyContext { context: FIRST_CONTEXT + 3 }, 0),
            (Call::ReleasePrimaryContext { device: 1 }, 0),
            (Call::ResetPrimaryContext { device: 2 }, 0),
            (Call::CreateStream { stream: at(3) }, 0),
            (Call::CreateStream { stream: at(4) }, 0),
            (Call::DestroyStream { stream: FIRST_ADDRESS }, 0),
        ];
        let events = events(&mut probes);
        assert_eq!(calls(&events), expected, "{way:?}");
        assert!(events.is_sorted_by(|one, next| one.start + one.duration <= next.start), "{events:?}");
        assert!(events.iter().all(|event| (event.process, event.thread) == (events[0].process, events[0].thread)));
        if in_first_pid_namespace() {
            assert_eq!(events[0].process, std::process::id());
        }
        assert_eq!(probes.lost().calls(), 0);
    }
}

#[test]
fn of_100_000_calls_none_is_lost_or_each_loss_is_counted() {
    for way in WAYS {
        let copy = DriverFile::new();
        let Some((mut probes, _)) = watch(&copy, all(), Some(way)) else { continue };
        let driver = copy.driver();
        let ended = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    let (_, address) = driver.cuMemAlloc_v2(4096);
                    driver.cuMemFree_v2(address);
                }
                ended.store(true, Ordering::Release);
            });
            let mut seen = 0;
            while !ended.load(Ordering::Acquire) {
                seen += probes.drain(|_| ()) as u64;
                std::thread::sleep(Duration::from_millis(1));
            }
            seen + probes.drain(|_| ()) as u64
        });
        assert_eq!(seen + probes.lost().calls(), 100_000, "{way:?}: {seen} seen, {:?}", probes.lost());
    }
}

#[test]
fn a_ring_without_a_reader_counts_what_it_loses() {
    let copy = DriverFile::new();
    let Some((mut probes, _)) = watch(&copy, small(), None) else { return };
    let driver = copy.driver();
    for size in 1..=2000 {
        driver.cuMemAlloc_v2(size);
    }
    let first: Vec<u64> = events(&mut probes).iter().map(size).collect();
    // 65,536 bytes hold 431 records of 152 bytes.
    assert_eq!(first, (1..=431).collect::<Vec<u64>>());
    assert_eq!(probes.lost().ring_full, 2000 - 431);
    assert_eq!(probes.lost().calls(), 2000 - 431);
    // The ring goes on, across its end.
    for size in 1..=300 {
        driver.cuMemAlloc_v2(size);
    }
    assert_eq!(events(&mut probes).iter().map(size).collect::<Vec<u64>>(), (1..=300).collect::<Vec<u64>>());
}

fn size(event: &Event) -> u64 {
    match event.call {
        Call::Allocate { size, .. } => size,
        other => panic!("{other:?}"),
    }
}

#[test]
fn threads_do_not_mix() {
    const THREADS: u64 = 16;
    const CALLS: u64 = 500;
    let copy = DriverFile::new();
    let Some((mut probes, _)) = watch(&copy, all(), None) else { return };
    let driver = copy.driver();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let driver = &driver;
            scope.spawn(move || {
                for call in 0..CALLS {
                    // Every tenth is refused.
                    let refused = if call % 10 == 0 { CAPACITY } else { 0 };
                    driver.cuMemAlloc_v2(1 + (thread << 16) + call + refused);
                }
            });
        }
    });
    let events = events(&mut probes);
    assert_eq!((events.len() as u64, probes.lost().calls()), (THREADS * CALLS, 0), "{:?}", probes.lost());
    for thread in 0..THREADS {
        let of_thread = |event: &&Event| (size(event) % CAPACITY - 1) >> 16 == thread;
        let own: Vec<&Event> = events.iter().filter(of_thread).collect();
        assert!(own.iter().all(|event| event.thread == own[0].thread && event.process == own[0].process));
        let asked: Vec<u64> = own.iter().map(|event| (size(event) % CAPACITY - 1) & 0xffff).collect();
        assert_eq!(asked, (0..CALLS).collect::<Vec<u64>>());
        assert!(own.iter().all(|event| event.refused() == (size(event) > CAPACITY)));
    }
}

#[test]
fn a_call_that_never_returns_is_found() {
    let copy = DriverFile::new();
    let Some((mut probes, _)) = watch(&copy, all(), None) else { return };
    output(program("thread-ends", &copy.path, &[]));
    output(program("process-ends", &copy.path, &[]));
    let mut waiting = program("waits", &copy.path, &[]);
    // The call after the one in which the thread ended is seen.
    assert_eq!(events(&mut probes).iter().map(size).collect::<Vec<u64>>(), [64]);
    if !in_first_pid_namespace() {
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        return workspace_skips::skipped("the threads that the probes report are not in this pid namespace");
    }
    let mut ended = 0;
    eventually("two threads have ended, one waits", || {
        let now = probes.sweep("/proc".as_ref());
        ended += now.ended;
        ((now.running, ended) == (1, 2)).then_some(())
    });
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    let found = probes.sweep("/proc".as_ref());
    assert_eq!((found.running, found.ended), (0, 1));
    assert_eq!(probes.sweep("/proc".as_ref()), Unfinished::default());
    assert_eq!(probes.lost().calls(), 0);
}

#[test]
fn a_thread_in_a_call_that_gives_memory_back_is_known() {
    let copy = DriverFile::new();
    let Some((mut probes, _)) = watch(&copy, all(), None) else { return };
    let mut others = [program("waits", &copy.path, &[]), program("frees", &copy.path, &[])];
    let threads = eventually("the thread that frees is in its call", || {
        Some(probes.giving()).filter(|threads| !threads.is_empty())
    });
    others.iter_mut().for_each(|other| {
        other.kill().unwrap();
        other.wait().unwrap();
    });
    assert_eq!(threads.len(), 1, "to ask for memory gives none back");
    if in_first_pid_namespace() {
        eventually("the threads have ended", || (probes.sweep("/proc".as_ref()).running == 0).then_some(()));
        assert!(probes.giving().is_empty());
    }
}

#[test]
fn each_file_needs_probes_of_its_own() {
    let (one, other) = (DriverFile::new(), DriverFile::new());
    let Some(mut probes) = load(all()) else { return };
    let link = one.beside("libcuda.so.580.159.04");
    std::fs::hard_link(&one.path, &link).unwrap();
    let drivers = [one.driver(), fake_libcuda::Driver::load(&link), other.driver()];
    // Other tests in this process have mapped copies of their own, and of one process only a few files are opened.
    let inodes = [&one, &other].map(|copy| std::fs::metadata(&copy.path).unwrap().ino());
    let own = |known: &dyn Fn(LibraryId) -> bool| {
        let known = |id: LibraryId| !inodes.contains(&id.inode) || known(id);
        find_libraries("/proc".as_ref(), [std::process::id()], known)
    };
    let of = |mut libraries: Vec<Library>, copy: &DriverFile| {
        libraries.retain(|library| library.path == copy.path || library.path == link);
        libraries
    };
    let found = own(&|_| false);
    assert!(found.failed.is_empty(), "{found:?}");
    let mut first = of(found.libraries, &one);
    assert_eq!(first.len(), 1, "a hard link is the same file: {first:?}");
    let first = first.remove(0);
    assert!(!first.deleted && found.in_use.contains(&first.id));
    probes.attach(&first).unwrap();
    let call = |probes: &mut Probes| {
        for (driver, size) in drivers.iter().zip(1..) {
            driver.cuMemAlloc_v2(size);
        }
        events(probes).iter().map(size).collect::<Vec<u64>>()
    };
    assert_eq!(call(&mut probes), [1, 2]);

    // The other file is deleted and still in use, and another file has its path.
    std::fs::remove_file(&other.path).unwrap();
    std::fs::write(&other.path, "another file").unwrap();
    let mut later = own(&|id| probes.is_attached(id));
    later.libraries.retain(|library| library.path == other.path);
    let refused =
        |found: &cuda_probe::Found| found.failed.iter().any(|(_, error)| error.to_string().contains("libcuda"));
    if later.libraries.is_empty() && refused(&later) {
        workspace_skips::skipped("the right to follow /proc/PID/map_files is missing");
        return;
    }
    assert_eq!(later.libraries.len(), 1, "{later:?}");
    assert!(later.libraries[0].deleted && later.in_use.contains(&first.id));
    probes.attach(&later.libraries[0]).unwrap();
    assert_eq!(call(&mut probes), [1, 2, 3]);
    // Once more attaches nothing.
    probes.attach(&later.libraries[0]).unwrap();
    assert_eq!(call(&mut probes), [1, 2, 3]);
    assert_eq!(probes.attached().count(), 2);
    assert!(probes.detach(first.id) && !probes.detach(first.id));
    // A program that another test starts at this moment has copies of the descriptors until its `exec`.
    eventually("the probes are gone", || (call(&mut probes) == [3]).then_some(()));
}

/// Containers of one image have overlay file systems over one file. Probes on both would count each call twice.
#[test]
fn overlays_over_one_file_share_its_probes() {
    let Some(mut probes) = load(all()) else { return };
    let (copy, empty) = (DriverFile::new(), tempfile::tempdir().unwrap());
    let merged = copy.beside("merged");
    std::fs::create_dir(&merged).unwrap();
    let (lower, target) = (copy.path.parent().unwrap().display(), merged.display());
    // In a mount namespace of its own.
    let script = format!(
        "mount -t overlay overlay -o lowerdir={}:{lower} {target} || exit 77; exec \"$@\"",
        empty.path().display()
    );
    let start = || program("calls-later", &merged.join("libcuda.so.1"), &["unshare", "-m", "sh", "-c", &script, "sh"]);
    let mut programs = [start(), start()];
    for child in &mut programs {
        let found = eventually("the program has loaded the library, or has ended", || {
            let found = find_libraries("/proc".as_ref(), [child.id()], |id| probes.is_attached(id));
            (!found.in_use.is_empty() || child.try_wait().unwrap().is_some()).then_some(found)
        });
        for library in found.libraries {
            probes.attach(&library).unwrap();
        }
    }
    if programs.iter_mut().any(|child| child.try_wait().unwrap().is_some()) {
        return workspace_skips::skipped("no overlay file system can be mounted");
    }
    // The file below both as well, and then it again.
    for library in [&copy.path, &copy.path] {
        probes.attach(&Library::open(library).unwrap()).unwrap();
    }
    // Older kernels, such as 6.1, show the numbers of the file below in the maps of a process.
    let ids: Vec<LibraryId> = probes.attached().collect();
    assert!(ids.len() == 3 || ids == [Library::open(&copy.path).unwrap().id], "{ids:?}");
    for child in programs {
        output(child);
    }
    assert_eq!(events(&mut probes).iter().map(size).collect::<Vec<u64>>(), [64, 64]);
    assert_eq!(probes.lost().calls(), 0);
    // The probes stay until the last of them is detached.
    let driver = copy.driver();
    for (id, left) in ids.iter().zip((0..ids.len()).rev()) {
        assert!(probes.detach(*id));
        eventually("the probes stay or are gone", || {
            driver.cuMemAlloc_v2(1);
            (events(&mut probes).len() == left.min(1)).then_some(())
        });
    }
}

#[test]
fn frees_of_unknown_addresses_are_events() {
    let copy = DriverFile::new();
    let Some((mut probes, _)) = watch(&copy, all(), None) else { return };
    let driver = copy.driver();
    for address in [0, 1, u64::MAX] {
        driver.cuMemFree_v2(address);
    }
    let expected =
        [(0, 0), (1, INVALID_VALUE), (u64::MAX, 0)].map(|(address, result)| (Call::Free { address }, result));
    assert_eq!(calls(&events(&mut probes)), expected);
}

#[test]
fn only_a_refusal_wakes_the_reader_at_once() {
    for way in WAYS {
        for mode in [Mode::All, Mode::Refusals] {
            let copy = DriverFile::new();
            let Some((mut probes, _)) = watch(&copy, Settings::new(mode), Some(way)) else { continue };
            let (driver, edges) = (copy.driver(), Edges::of(&probes));
            driver.cuMemAlloc_v2(4096);
            driver.cuCtxSetCurrent(FIRST_CONTEXT);
            assert_eq!(driver.allocate_nowhere(1), INVALID_VALUE);
            assert!(!edges.wait(Duration::ZERO), "{way:?} {mode:?}");
            driver.cuMemAlloc_v2(CAPACITY + 1);
            assert!(edges.wait(PATIENCE), "{way:?} {mode:?}");
            assert!(events(&mut probes).last().unwrap().refused());
        }
    }
}

#[test]
fn a_ring_that_fills_wakes_the_reader() {
    let copy = DriverFile::new();
    let Some((probes, _)) = watch(&copy, small(), None) else { return };
    let (driver, edges) = (copy.driver(), Edges::of(&probes));
    // A quarter is 16,384 bytes, which 108 records of 152 bytes exceed.
    for _ in 0..108 {
        driver.cuMemAlloc_v2(1);
    }
    assert!(!edges.wait(Duration::ZERO));
    driver.cuMemAlloc_v2(1);
    assert!(edges.wait(PATIENCE));
}

#[test]
fn refusals_come_with_their_retries_and_their_contexts() {
    for way in WAYS {
        let copy = DriverFile::new();
        let Some((mut probes, attached)) = watch(&copy, Settings::new(Mode::Refusals), Some(way)) else { continue };
        assert!(!attached.symbols.contains(&"cuMemFree_v2") && !attached.absent.contains(&"cuMemFreeAsync_ptsz"));
        let driver = copy.driver();
        // The driver refuses by size alone, so a request without a pointer fails in its place, for another reason.
        driver.cuMemAlloc_v2(GIB);
        driver.cuMemFree_v2(FIRST_ADDRESS + GIB);
        assert_eq!(driver.allocate_nowhere(GIB), INVALID_VALUE);
        driver.cuMemAlloc_v2(GIB);
        driver.cuMemAlloc_v2(CAPACITY + GIB);
        driver.cuCtxSetCurrent(FIRST_CONTEXT);
        driver.cuMemAlloc_v2(GIB);
        let expected = [
            (Call::Allocate { size: GIB, address: None }, INVALID_VALUE),
            (Call::Allocate { size: CAPACITY + GIB, address: None }, OUT_OF_MEMORY),
            (Call::SetContext { context: FIRST_CONTEXT }, 0),
        ];
        assert_eq!(calls(&events(&mut probes)), expected, "{way:?}");
        // Now there is room: the same size is a retry, once, and in this thread only.
        driver.set_capacity(u64::MAX);
        std::thread::scope(|scope| scope.spawn(|| driver.cuMemAlloc_v2(CAPACITY + GIB)).join().unwrap());
        driver.cuMemAllocManaged(CAPACITY + GIB, 1);
        assert_eq!(calls(&events(&mut probes)), []);
        driver.cuMemAlloc_v2(CAPACITY + GIB);
        driver.cuMemAlloc_v2(CAPACITY + GIB);
        let address = Some(FIRST_ADDRESS + CAPACITY + GIB);
        assert_eq!(calls(&events(&mut probes)), [(Call::Allocate { size: CAPACITY + GIB, address }, 0)]);
        assert_eq!(probes.lost().calls(), 0);
    }
}

#[test]
fn the_way_is_chosen_and_a_library_is_checked() {
    let Some(mut probes) = load(all()) else { return };
    let copy = DriverFile::new();
    let reason = |probes: &mut Probes, path: &std::path::Path| match probes.attach(&Library::open(path).unwrap()) {
        Err(Error::Library { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let text = copy.beside("libcuda.so");
    std::fs::write(&text, "no library").unwrap();
    assert!(matches!(reason(&mut probes, &text), NoLibrary::NotElf(_)));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("/libc.so")));
    assert!(matches!(reason(&mut probes, libc.unwrap().as_ref()), NoLibrary::LacksCalls));
    assert!(matches!(Library::open("/dev/null".as_ref()), Err(Error::Library { .. })));
    assert!(matches!(Library::open(&copy.beside("none")), Err(Error::Library { .. })));
    assert_eq!(probes.attached().count(), 0);
    probes.attach(&Library::open(&copy.path).unwrap()).unwrap();
    copy.driver().cuMemAlloc_v2(1);
    assert_eq!(events(&mut probes).len(), 1);
}

#[test]
fn a_ring_has_a_size_that_the_kernel_takes() {
    let Some(probes) = load(small()) else { return };
    drop(probes);
    for bytes in [0, 1, 4095, 12_288, 3 << 20, 2 << 30] {
        let mut settings = all();
        settings.ring_bytes = bytes;
        assert!(matches!(Probes::load(settings), Err(Error::RingSize(told)) if told == bytes), "{bytes}");
    }
}

#[test]
fn a_missing_right_is_named() {
    let Some(probes) = load(all()) else { return };
    drop(probes);
    let there = std::process::Command::new("setpriv").arg("--version").output().is_ok();
    if workspace_skips::missing("setpriv", there) {
        return;
    }
    for (kept, named) in [
        ("-all", "CAP_BPF and CAP_PERFMON are missing"),
        ("-all,+bpf", "CAP_PERFMON is missing"),
        ("-all,+perfmon", "CAP_BPF is missing"),
    ] {
        let said = output(program("loads", "/".as_ref(), &["setpriv", "--bounding-set", kept]));
        assert!(said.contains("refused: bpf(BPF_") && said.contains(named), "{kept}: {said}");
    }
    let said = output(program("loads", "/".as_ref(), &["setpriv", "--bounding-set", "-all,+bpf,+perfmon"]));
    assert!(said.contains("loaded"), "{said}");
}
