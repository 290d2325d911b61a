//! What is made of calls and lists: the peaks of a moment, who they belong to, and what is not claimed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Instant;

use cuda_probe::{Call, OUT_OF_MEMORY, Place as Location};

use super::*;
use gpu_readings::snapshot::{CallHolder, Gpu, Owner, Process, ProcessKind, Workload, WorkloadKind};

mod losses;
mod sums;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A machine on which processes end when a test says so.
#[derive(Default)]
struct Simulated {
    ended: RefCell<BTreeSet<u32>>,
    free: Option<u64>,
}

impl Machine for Simulated {
    fn is_alive(&self, process: ProcessId) -> bool {
        !self.ended.borrow().contains(&process.pid)
    }

    fn has_thread(&self, process: u32, _: u32) -> bool {
        !self.ended.borrow().contains(&process)
    }

    fn free(&self, device: &Device) -> Option<u64> {
        self.free.filter(|_| device.gpu.index == 0).or(Some(80 * GIB))
    }

    fn allocatable(&self, _: &Device) -> Option<u64> {
        Some(80 * GIB)
    }
}

fn gpu(index: u32) -> Arc<Gpu> {
    Arc::new(Gpu { index, uuid: format!("GPU-{index}"), ..Gpu::default() })
}

fn workload(name: &str) -> Arc<Workload> {
    Arc::new(Workload { name: name.into(), kind: WorkloadKind::Systemd, pod: None })
}

/// A list with these processes: the pid, the workload and the bytes.
fn list(gpu: &Arc<Gpu>, processes: &[(u32, &str, u64)]) -> Arc<GpuProcesses> {
    let process = |&(pid, name, used): &(u32, &str, u64)| {
        let owner = Owner { start_ticks: Some(u64::from(pid)), workload: Some(workload(name)), ..Owner::default() };
        Process { used: Some(used), ..Process::for_tests(pid, owner) }
    };
    let now = Some(Instant::now());
    Arc::new(GpuProcesses {
        gpu: gpu.clone(),
        at: now,
        began: now,
        processes: processes.iter().map(process).collect(),
        unattributed: Some(8 * MIB),
        ..GpuProcesses::default()
    })
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn span(start: u64, end: u64) -> Span {
    Span { start: at(start), end: at(end) }
}

fn id(pid: u32) -> ProcessId {
    ProcessId { pid, start_ticks: Some(pid.into()) }
}

struct Rig {
    account: Account,
    machine: Simulated,
    giving: HashSet<u32>,
}

impl Rig {
    fn new() -> Self {
        Self { account: Account::new(true), machine: Simulated::default(), giving: HashSet::new() }
    }

    /// A call that returns at this moment, 1 ms after it was entered.
    fn call(&mut self, pid: u32, returns: u64, call: Call) -> Option<Request> {
        self.account.call(Event::for_tests(pid, call, 0, at(returns - 1)), id(pid))
    }

    fn take(&mut self, pid: u32, returns: u64, size: u64) {
        self.call(pid, returns, Call::Allocate { size, address: Some(size) });
    }

    fn free(&mut self, pid: u32, returns: u64, address: u64) {
        self.call(pid, returns, Call::Free { address });
    }

    /// The peaks up to a moment: of processes by pid, of workloads by name, and of GPUs by index, with their bytes.
    fn peaks(&mut self, until: u64) -> Vec<(String, u64)> {
        let taken = self.account.follow(at(until), self.giving.clone(), &self.machine);
        let holders = taken.holders.iter().map(|peak| match &peak.holder {
            CallHolder::Process(id) => (format!("process {}", id.pid), peak.bytes),
            CallHolder::Workload(workload) => (workload.name.clone(), peak.bytes),
        });
        let places = &self.account.places;
        let gpus =
            taken.gpus.iter().map(|(device, bytes)| (format!("gpu {}", places.device(*device).gpu.index), *bytes));
        let mut all: Vec<_> = holders.chain(gpus).collect();
        all.sort();
        all
    }
}

fn told(peaks: &[(String, u64)]) -> Vec<(&str, u64)> {
    peaks.iter().map(|(who, bytes)| (&**who, *bytes)).collect()
}

#[test]
fn a_spike_between_two_lists_is_a_peak_of_its_process_its_workload_and_its_gpu() {
    let mut rig = Rig::new();
    let gpu = gpu(0);
    rig.account.list(&list(&gpu, &[(7, "job", 10 * GIB), (8, "job", 3 * GIB), (9, "other", GIB)]), span(10, 11));
    for (spike, size) in (1..=20).map(|spike| (20 + 4 * spike, GIB + spike * MIB)) {
        rig.take(7, spike, size);
        rig.free(7, spike + 2, size);
    }
    let highest = GIB + 20 * MIB;
    let peaks = rig.peaks(200);
    let expected =
        [("gpu 0", 14 * GIB + 8 * MIB + highest), ("job", 13 * GIB + highest), ("process 7", 10 * GIB + highest)];
    assert_eq!(told(&peaks), expected);
    assert!(rig.peaks(300).is_empty(), "each peak is passed on once");
    let mut part = CallPart::default();
    rig.account.list(&list(&gpu, &[(7, "job", 10 * GIB)]), span(310, 311));
    rig.peaks(400);
    rig.account.show(&mut part);
    assert_eq!(part.gpus[0].corrections[0], 1, "calls told as much as the reading");
    // The calls came before the first list was taken in, so they are no workload's.
    assert!(part.workloads.is_empty());
}

#[test]
fn what_may_have_been_given_back_does_not_count() {
    // Each case: what happens between the list and a request of 2 GiB.
    let cases: [(&str, &[Call], u64); 6] = [
        ("nothing", &[], 12 * GIB),
        ("an unknown address", &[Call::Free { address: 5 }], 2 * GIB),
        ("the end of a context", &[Call::ResetPrimaryContext { device: 0 }], 2 * GIB),
        ("a pool", &[Call::AllocateAsync { size: 3 * GIB, stream: 1, address: Some(9) }], 5 * GIB),
        ("an unknown mapping", &[Call::Unmap { address: 64, size: 64 }], 2 * GIB),
        ("the address 0", &[Call::Free { address: 0 }], 12 * GIB),
    ];
    for (what, before, expected) in cases {
        let mut rig = Rig::new();
        rig.account.list(&list(&gpu(0), &[(7, "a", 10 * GIB)]), span(10, 11));
        before.iter().for_each(|call| {
            rig.call(7, 20, *call);
        });
        rig.take(7, 30, 2 * GIB);
        let peaks = rig.peaks(100);
        let own = peaks.iter().find(|(who, _)| who == "process 7").map(|(_, bytes)| *bytes);
        assert_eq!(own, (expected > 10 * GIB).then_some(expected), "{what}");
    }
}

#[test]
fn memory_without_an_address_is_held_until_it_is_released_and_unmapped() {
    let mut rig = Rig::new();
    let create = Call::Create { size: GIB, place: Location::Device(0), handle: Some(1) };
    let host = Call::Create { size: 9 * GIB, place: Location::Host, handle: Some(2) };
    rig.account.list(&list(&gpu(0), &[(7, "a", 10 * GIB)]), span(10, 11));
    for (returns, call) in [
        (20, create),
        (21, host),
        (22, Call::Map { address: 4096, size: GIB, offset: 0, handle: 1 }),
        (23, Call::Release { handle: 1 }),
        (24, Call::Create { size: 2 * GIB, place: Location::Device(0), handle: Some(3) }),
        (25, Call::Unmap { address: 4096, size: GIB }),
    ] {
        rig.call(7, returns, call);
    }
    assert_eq!(told(&rig.peaks(100))[2], ("process 7", 13 * GIB));
    rig.call(7, 120, Call::Create { size: GIB / 2, place: Location::Device(0), handle: Some(4) });
    assert_eq!(told(&rig.peaks(200))[2], ("process 7", 12 * GIB + GIB / 2));
}

#[test]
fn a_process_on_two_gpus_has_a_bound_where_its_device_is_known() {
    let mut rig = Rig::new();
    let both = [gpu(0), gpu(1)];
    let read = |rig: &mut Rig, millis, used: [u64; 2]| {
        for (gpu, used) in both.iter().zip(used) {
            rig.account.list(&list(gpu, &[(7, "a", used)]), span(millis, millis + 1));
        }
    };
    let context = |device: i32| Some(0xc0 + u64::from(device.unsigned_abs()));
    for device in [0, 1] {
        rig.call(7, 5, Call::RetainPrimaryContext { device, context: context(device) });
    }
    read(&mut rig, 10, [GIB, GIB]);
    rig.call(7, 19, Call::SetContext { context: 0xc1 });
    rig.take(7, 20, 2 * GIB);
    assert!(rig.peaks(100).is_empty(), "the ordinal says nothing: CUDA_VISIBLE_DEVICES can change the order");
    // The next lists show which GPU grew.
    read(&mut rig, 110, [3 * GIB + MIB, GIB]);
    rig.take(7, 120, GIB);
    let peaks = rig.peaks(200);
    assert_eq!(told(&peaks)[1..], [("gpu 0", 4 * GIB + 9 * MIB), ("process 7", 4 * GIB + MIB)], "{peaks:?}");
}

#[test]
fn a_client_of_mps_is_on_the_gpu_that_it_holds_memory_of() {
    let mut rig = Rig::new();
    for (moment, index, used) in [(10, 0, 3 * GIB), (10, 1, 0), (15, 0, 3 * GIB), (15, 1, 0)] {
        let mut list = list(&gpu(index), &[(7, "a", used), (8, "b", 0)]);
        for client in &mut Arc::make_mut(&mut list).processes {
            client.kind = ProcessKind::Mps;
        }
        rig.account.list(&list, span(moment, moment + 1));
    }
    rig.take(7, 20, 2 * GIB);
    let expected = [("a", 5 * GIB), ("gpu 0", 5 * GIB + 8 * MIB), ("process 7", 5 * GIB)];
    assert_eq!(told(&rig.peaks(100)), expected);
    // One without any memory may be on each of them, and is not forgotten.
    assert_eq!((rig.account.places.of(8).len(), rig.account.places.processes().count()), (2, 2));
}

fn refused(pid: u32, returns: u64, size: u64) -> Event {
    Event::for_tests(pid, Call::Allocate { size, address: None }, OUT_OF_MEMORY, at(returns - 1))
}

/// The requests with a known outcome: the bytes that were asked for, and the outcome.
fn outcomes(known: Vec<Option<Request>>) -> Vec<(u64, Outcome)> {
    known.into_iter().flatten().map(|request| (request.asked.unwrap(), request.outcome)).collect()
}

#[test]
fn a_request_that_is_granted_when_it_is_repeated_is_no_failure() {
    let mut rig = Rig::new();
    let mut known = vec![rig.account.call(refused(7, 20, GIB), id(7))];
    known.push(rig.call(7, 30, Call::Free { address: 5 }));
    known.push(rig.call(7, 40, Call::Allocate { size: GIB, address: Some(1) }));
    assert_eq!(outcomes(known), [(GIB, Outcome::Retried)]);
    assert!(rig.account.settle(Vec::new(), at(60_000), &rig.machine).is_empty());
}

#[test]
fn a_request_is_refused_for_good_once_and_when_the_program_goes_on() {
    let mut rig = Rig::new();
    // Repeated in vain: one request.
    let known = [20, 30, 40].map(|returns| rig.account.call(refused(7, returns, GIB), id(7)));
    assert_eq!(outcomes(known.into()), [(GIB, Outcome::Refused)]);
    // Something else is asked for.
    let mut known = vec![rig.account.call(refused(8, 20, 2 * GIB), id(8))];
    known.push(rig.call(8, 30, Call::Allocate { size: GIB, address: Some(1) }));
    assert_eq!(outcomes(known), [(2 * GIB, Outcome::Refused)]);
    // Only the result 2 is a refusal.
    let other = Event::for_tests(9, Call::Allocate { size: 3 * GIB, address: None }, 800, at(20));
    assert_eq!(rig.account.call(other, id(9)), None);
}

#[test]
fn a_gpu_on_whose_list_a_process_is_not_yet_is_not_mistaken_for_the_other() {
    let both = [gpu(0), gpu(1)];
    let read = |rig: &mut Rig, millis, holds: [&[(u32, &str, u64)]; 2]| {
        for (gpu, processes) in both.iter().zip(holds) {
            rig.account.list(&list(gpu, processes), span(millis, millis + 1));
        }
    };
    // Whether the first context was made before the probes were there or after, the process goes to the second GPU at 20 ms.
    for sees_first in [true, false] {
        let mut rig = Rig::new();
        if sees_first {
            rig.call(7, 5, Call::RetainPrimaryContext { device: 0, context: Some(0xc0) });
        }
        read(&mut rig, 10, [&[(7, "a", GIB)], &[]]);
        read(&mut rig, 15, [&[(7, "a", GIB)], &[]]);
        rig.take(7, 18, 2 * GIB);
        assert_eq!(told(&rig.peaks(18)).last(), Some(&("process 7", 3 * GIB)), "it is on one GPU");
        rig.call(7, 20, Call::RetainPrimaryContext { device: 1, context: Some(0xc1) });
        rig.call(7, 21, Call::SetContext { context: 0xc1 });
        rig.take(7, 22, 10 * GIB);
        assert!(rig.peaks(30).is_empty(), "{sees_first}");
        // What it is refused waits for the lists.
        let mut known: Vec<Request> = Vec::new();
        known.extend(rig.account.call(refused(7, 31, 70 * GIB), id(7)));
        rig.machine.ended.borrow_mut().insert(7);
        assert!(rig.account.settle(known, at(32), &rig.machine).is_empty(), "{sees_first}");
        rig.machine.ended.borrow_mut().clear();
        read(&mut rig, 40, [&[(7, "a", 3 * GIB)], &[(7, "a", 10 * GIB)]]);
        rig.peaks(50);
        assert!(rig.account.settle(Vec::new(), at(51), &rig.machine).is_empty(), "both have enough free");
        let mut part = CallPart::default();
        rig.account.show(&mut part);
        let counted: Vec<_> = part.requests.iter().map(|counted| (counted.gpu.is_none(), counted.refused)).collect();
        assert_eq!(counted, [(true, 1)], "{sees_first}");
    }
}

#[test]
fn a_refusal_belongs_to_the_device_on_which_its_process_is() {
    let mut rig = Rig::new();
    rig.account = Account::new(false);
    rig.machine.free = Some(5 * GIB);
    for moment in [1, 5] {
        rig.account.list(&list(&gpu(0), &[(7, "a", GIB), (8, "b", GIB)]), span(moment, moment + 1));
        rig.account.list(&list(&gpu(1), &[(8, "b", GIB)]), span(moment, moment + 1));
    }
    // The process ends: nobody waits for it to ask again. Process 9 is on no list.
    for pid in [7, 8, 9] {
        rig.account.call(refused(pid, 20, 30 * GIB), id(pid));
        rig.machine.ended.borrow_mut().insert(pid);
    }
    let mut refusals = rig.account.settle(Vec::new(), at(100), &rig.machine);
    refusals.sort_by_key(|refusal| refusal.process.pid);
    let told: Vec<_> = refusals.iter().map(|of| (of.process.pid, of.device.uuid(), of.asked)).collect();
    assert_eq!(told, [(7, "GPU-0", 30 * GIB), (8, "GPU-0", 30 * GIB)], "only GPU 0 has less free than was asked for");
    assert!(rig.account.settle(Vec::new(), at(20_000), &rig.machine).is_empty());
    let mut part = CallPart::default();
    rig.account.show(&mut part);
    assert_eq!(part.lost[LostCalls::Unlisted as usize], 1);
    assert_eq!(part.gpus.iter().map(|counted| counted.refused).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(part.requests.iter().map(|counted| (counted.refused, counted.retried)).collect::<Vec<_>>(), [(1, 0); 2]);
}

#[test]
fn a_refusal_that_names_no_size_is_counted_and_is_no_incident() {
    let mut rig = Rig::new();
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB)]), span(1, 2));
    rig.peaks(5);
    let open = Call::OpenShared { address: None };
    // In vain, then something else, which is granted when it is repeated.
    let calls = [(open, 2), (open, 2), (Call::CreateArray { shape: None, array: None }, 2)];
    let calls = calls.into_iter().chain([(Call::Import { handle: None }, 2), (Call::Import { handle: Some(1) }, 0)]);
    let known: Vec<Request> = (10..)
        .zip(calls)
        .filter_map(|(returns, (call, result))| {
            rig.account.call(Event::for_tests(7, call, result, at(returns - 1)), id(7))
        })
        .collect();
    assert!(rig.account.settle(known, at(20_000), &rig.machine).is_empty());
    let mut part = CallPart::default();
    rig.account.show(&mut part);
    assert_eq!(part.gpus.iter().map(|counted| counted.refused).collect::<Vec<_>>(), [2]);
    assert_eq!(part.requests.iter().map(|counted| (counted.refused, counted.retried)).collect::<Vec<_>>(), [(2, 1)]);
}
