//! Of which device a thread asks memory: the ordinal of its current context.
//!
//! Source: the device of `cuMemAlloc` and its kin is that of the thread's current context, which is on a stack of its own for
//! each thread. An ordinal counts the devices that the process sees; `CUDA_VISIBLE_DEVICES` changes it.
//!
//! Invariant: bounded, whatever a process calls. What does not fit is unknown.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use cuda_probe::{Call, Event, Place};

const CONTEXTS: usize = 1024;
const THREADS: usize = 4096;
const DEPTH: usize = 8;
const ORDINALS: usize = 64;

/// The contexts of one process.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    devices: HashMap<u64, i32>,
    current: HashMap<u32, Vec<u64>>,
    /// Every ordinal of which the process has had a context or memory.
    ordinals: BTreeSet<i32>,
    /// When the last of them came.
    noted: Duration,
}

impl Contexts {
    /// Takes in a call. Those of one thread must come in their order.
    pub(super) fn see(&mut self, event: &Event) {
        if event.result != 0 {
            return;
        }
        let end = event.start + event.duration;
        match event.call {
            Call::SetContext { context } => {
                self.pop(event.thread);
                self.push(event.thread, context);
            }
            Call::PushContext { context } => self.push(event.thread, context),
            Call::PopContext { .. } => self.pop(event.thread),
            Call::RetainPrimaryContext { device, context: Some(context) } => self.learn(context, device, end),
            Call::CreateContext { device, context: Some(context) } => {
                self.learn(context, device, end);
                self.push(event.thread, context);
            }
            Call::Create { place: Place::Device(device), .. } => self.note(device, end),
            _ => {}
        }
    }

    /// The ordinal of the device from which a call takes memory; `None` if it is not known.
    pub(super) fn ordinal(&self, event: &Event) -> Option<i32> {
        match event.call {
            Call::Create { place: Place::Device(device), .. } => Some(device),
            Call::Create { .. } => None,
            _ => self.devices.get(self.current.get(&event.thread)?.last()?).copied(),
        }
    }

    /// When the process is known to have begun to use another device.
    pub(super) fn noted(&self) -> Duration {
        self.noted
    }

    /// Whether the process is known to use more than one device.
    pub(super) fn are_several(&self) -> bool {
        self.ordinals.len() > 1
    }

    /// Forgets threads for which `is_alive` is false.
    pub(super) fn sweep(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.current.retain(|thread, _| is_alive(*thread));
    }

    /// The number of threads that are remembered.
    pub(super) fn threads(&self) -> usize {
        self.current.len()
    }

    fn learn(&mut self, context: u64, device: i32, end: Duration) {
        self.note(device, end);
        if self.devices.len() < CONTEXTS || self.devices.contains_key(&context) {
            self.devices.insert(context, device);
        }
    }

    fn note(&mut self, device: i32, end: Duration) {
        if self.ordinals.len() < ORDINALS && self.ordinals.insert(device) {
            self.noted = self.noted.max(end);
        }
    }

    fn push(&mut self, thread: u32, context: u64) {
        // The context 0 is none.
        if context == 0 || (self.current.len() >= THREADS && !self.current.contains_key(&thread)) {
            return;
        }
        let stack = self.current.entry(thread).or_default();
        if stack.len() == DEPTH {
            stack.remove(0);
        }
        stack.push(context);
    }

    fn pop(&mut self, thread: u32) {
        if let Some(stack) = self.current.get_mut(&thread) {
            stack.pop();
            if stack.is_empty() {
                self.current.remove(&thread);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_threads_contexts_and_ordinals_is_bounded() {
        let mut contexts = Contexts::default();
        let see = |contexts: &mut Contexts, thread, call| {
            let mut event = Event::for_tests(1, call, 0, Duration::ZERO);
            event.thread = thread;
            contexts.see(&event);
            contexts.ordinal(&event)
        };
        for number in 0..20_000 {
            let device = i32::try_from(number).unwrap();
            let context = Some(u64::from(number) + 1);
            see(&mut contexts, 1, Call::RetainPrimaryContext { device, context });
            see(&mut contexts, number, Call::PushContext { context: 1 });
            see(&mut contexts, 7, Call::PushContext { context: 1 });
        }
        let deepest = contexts.current.values().map(Vec::len).max();
        assert_eq!((contexts.devices.len(), contexts.ordinals.len()), (CONTEXTS, ORDINALS));
        assert_eq!((contexts.threads(), deepest), (THREADS, Some(DEPTH)));
        let take = Call::Allocate { size: 1, address: None };
        assert_eq!(see(&mut contexts, 7, take), Some(0));
        assert_eq!(see(&mut contexts, 19_999, take), None, "there was no room for the thread");
        // The threads end.
        contexts.sweep(|thread| thread == 7);
        assert_eq!(contexts.threads(), 1);
        for _ in 0..=DEPTH {
            see(&mut contexts, 7, Call::PopContext { popped: None });
        }
        assert_eq!(contexts.threads(), 0, "a thread without a context takes no room");
    }
}
