//! What calls do not tell: lost calls, calls in progress during a list, and memory that is given back without a call.

use super::*;

#[test]
fn lost_calls_leave_no_bound_until_a_list_that_began_later() {
    let mut rig = Rig::new();
    rig.account.list(&list(&gpu(0), &[(7, "a", 10 * GIB)]), span(10, 11));
    rig.take(7, 20, GIB);
    rig.peaks(30);
    // Before the loss is known, a list began and memory was taken: what was lost may have given both back.
    rig.account.list(&list(&gpu(0), &[(7, "a", 11 * GIB)]), span(40, 41));
    rig.take(7, 50, 20 * GIB);
    rig.account.lose(at(60));
    rig.take(7, 70, 2 * GIB);
    assert!(rig.peaks(100).is_empty());
    rig.account.list(&list(&gpu(0), &[(7, "a", 10 * GIB)]), span(110, 111));
    rig.take(7, 120, 3 * GIB);
    assert_eq!(told(&rig.peaks(200)).last(), Some(&("process 7", 13 * GIB)));
    // Another process, which nothing was known of, while its list began before a loss.
    rig.account.lose(at(220));
    rig.account.list(&list(&gpu(0), &[(8, "b", 10 * GIB)]), span(210, 211));
    rig.take(8, 230, GIB);
    assert!(rig.peaks(300).is_empty());
}

#[test]
fn a_reading_overrules_allocations_that_seem_to_live() {
    let own = |rig: &mut Rig, until| {
        let peaks = rig.peaks(until);
        peaks.iter().find(|(who, _)| who == "process 7").map(|(_, bytes)| *bytes)
    };
    // A program takes 40 GiB and is replaced with `exec`: its memory is given back without a call.
    let mut rig = Rig::new();
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB)]), span(1, 2));
    rig.take(7, 10, 40 * GIB);
    assert_eq!(own(&mut rig, 15), Some(41 * GIB));
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB)]), span(100, 101));
    rig.take(7, 110, 2 * GIB);
    assert_eq!(own(&mut rig, 150), Some(3 * GIB));
    rig.account.list(&list(&gpu(0), &[(7, "a", 3 * GIB)]), span(200, 201));
    rig.take(7, 210, 4 * GIB);
    assert_eq!(own(&mut rig, 250), Some(7 * GIB));
    // A reading that came after a free, and a list that comes after calls: nothing is in doubt, so what lives counts
    // although a pool leaves no bound on the reading.
    for begin in [100, 130] {
        let mut rig = Rig::new();
        rig.account.list(&list(&gpu(0), &[(7, "a", GIB)]), span(1, 2));
        rig.call(7, 5, Call::AllocateAsync { size: MIB, stream: 1, address: Some(9) });
        rig.take(7, 10, 40 * GIB);
        rig.take(7, 20, 3 * GIB);
        rig.free(7, 121, 40 * GIB);
        rig.account.list(&list(&gpu(0), &[(7, "a", 3 * GIB + MIB)]), span(begin, 131));
        rig.take(7, 140, 5 * GIB);
        rig.peaks(135);
        assert_eq!(own(&mut rig, 150), Some(8 * GIB + MIB), "{begin}");
    }
}

#[test]
fn what_is_mapped_in_the_place_of_something_else_was_unmapped() {
    let mut rig = Rig::new();
    let create = |size, handle| Call::Create { size, place: Location::Device(0), handle: Some(handle) };
    let map = |handle| Call::Map { address: 4096, size: GIB, offset: 0, handle };
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB)]), span(10, 11));
    let calls = [create(10 * GIB, 1), map(1), Call::Release { handle: 1 }, create(2 * GIB, 2), map(2), create(GIB, 3)];
    for (returns, call) in (20..).zip(calls) {
        rig.call(7, returns, call);
    }
    assert_eq!(told(&rig.peaks(23))[2], ("process 7", 13 * GIB), "before the second is mapped");
    assert_eq!(told(&rig.peaks(100))[2], ("process 7", 4 * GIB));
    rig.call(7, 120, create(3 * GIB, 4));
    assert_eq!(told(&rig.peaks(200))[2], ("process 7", 7 * GIB));
}

#[test]
fn what_was_given_back_while_a_list_was_read_is_not_held() {
    // Each frees the 10 GiB that the list shows, somewhere between 15 and 500 ms.
    let cases: [(&str, Call, i32); 6] = [
        ("the end of a context", Call::ResetPrimaryContext { device: 0 }, 0),
        ("an unknown address", Call::Free { address: 5 }, 0),
        ("a known address, with an earlier error", Call::Free { address: 10 * GIB }, 700),
        ("the end of a context, with an earlier error", Call::DestroyContext { context: 1 }, 700),
        ("a pool", Call::TrimPool { pool: 1, keep: 0 }, 0),
        ("an unknown mapping", Call::Unmap { address: 64, size: 64 }, 0),
    ];
    for (what, call, result) in cases {
        let mut rig = Rig::new();
        if matches!(call, Call::Free { address } if address == 10 * GIB) {
            rig.take(7, 10, 10 * GIB);
        }
        let mut event = Event::for_tests(7, call, result, at(15));
        event.duration = at(485);
        rig.account.call(event, id(7));
        rig.account.list(&list(&gpu(0), &[(7, "a", 10 * GIB)]), span(100, 101));
        rig.take(7, 600, 5 * GIB);
        assert!(rig.peaks(1000).is_empty(), "{what}");
    }
}

#[test]
fn a_process_does_not_hold_what_another_took_that_had_its_pid() {
    let other = ProcessId { pid: 7, start_ticks: Some(3) };
    // Whether the calls of both are read in one round.
    for at_once in [true, false] {
        let mut rig = Rig::new();
        let call = Call::Allocate { size: 40 * GIB, address: Some(1) };
        rig.account.call(Event::for_tests(7, call, 0, at(11)), other);
        if !at_once {
            rig.peaks(15);
        }
        // The driver does not report the memory, so that no reading overrules the calls.
        let mut list = (*list(&gpu(0), &[(7, "a", GIB)])).clone();
        list.processes[0].used = None;
        rig.account.list(&Arc::new(list), span(20, 21));
        rig.take(7, 30, 2 * GIB);
        assert_eq!(told(&rig.peaks(100)).last(), Some(&("process 7", 2 * GIB)), "{at_once}");
        // A refusal of the first is not one of the second.
        rig.account.call(refused(7, 110, GIB), other);
        rig.account.call(refused(7, 120, 3 * GIB), id(7));
        rig.machine.ended.borrow_mut().insert(7);
        let refusals = rig.account.settle(Vec::new(), at(10_000), &rig.machine);
        assert_eq!(refusals.iter().map(|of| of.asked).collect::<Vec<_>>(), [3 * GIB], "{at_once}");
    }
}

#[test]
fn only_what_changes_the_counts_is_news() {
    let mut rig = Rig::new();
    assert!(!rig.account.has_news());
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB)]), span(1, 2));
    rig.peaks(5);
    assert!(rig.account.has_news() && !rig.account.has_news());
    // A call about a context, and one of a process that no list contains.
    rig.call(7, 10, Call::SetContext { context: 1 });
    rig.take(9, 10, GIB);
    assert!(rig.account.settle(Vec::new(), at(15), &rig.machine).is_empty() && !rig.account.has_news());
    rig.take(7, 20, GIB);
    assert!(rig.account.has_news());
    // A refusal counts when its outcome is known, also that of a process that no list contains.
    for (pid, moment) in [(7, 40), (9, 20_000)] {
        rig.account.call(refused(pid, moment, GIB), id(pid));
        rig.account.has_news();
        rig.account.settle(Vec::new(), at(moment + 10_000), &rig.machine);
        assert!(rig.account.has_news(), "{pid}");
    }
}

#[test]
fn what_was_managed_and_is_freed_may_be_in_the_last_reading() {
    let mut rig = Rig::new();
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB)]), span(1, 2));
    rig.call(7, 5, Call::AllocateManaged { size: 5 * GIB, address: Some(5) });
    rig.account.list(&list(&gpu(0), &[(7, "a", 6 * GIB)]), span(10, 11));
    rig.take(7, 14, 2 * GIB);
    assert_eq!(told(&rig.peaks(15)).last(), Some(&("process 7", 8 * GIB)));
    rig.free(7, 20, 5);
    rig.take(7, 22, 4 * GIB);
    assert_eq!(
        told(&rig.peaks(30)).last(),
        None,
        "it holds 7 GiB, and 12 were a sum of what it held one after the other"
    );
}
