//! What one process holds at least: its allocations by their names, the ordinals of its devices, and its readings.
//!
//! Invariant: bounded, whatever the process calls.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use cuda_probe::{Call, Event};

use super::contexts::Contexts;
use super::held::{Class, Held, Span};
use super::meaning::{Kind, Name, request};
use super::ordinals::{Ordinal, learn};
use super::places::{DeviceNumber, Place, Whereabouts};

/// The maximum number of allocations and mappings that are remembered.
const OF_PROCESS: usize = 1 << 16;
/// The maximum number of ordinals that are told apart.
const ORDINALS: usize = 64;
/// `CUDA_ERROR_INVALID_VALUE`: nothing has this name.
const INVALID_VALUE: i32 = 1;

#[derive(Debug, Clone, Copy)]
struct Block {
    /// When the call that took it was over.
    taken: Duration,
    bytes: u64,
    class: Class,
    ordinal: Option<i32>,
    /// How many mappings refer to it, and whether its handle has been released: it is freed when neither holds it.
    mappings: u32,
    released: bool,
}

/// A reading of less than the allocations that seemed to live.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    /// When the reading was complete.
    complete: Duration,
    /// Bytes: by how much it was less, without what was given back before it was complete.
    over: u64,
}

/// One process.
#[derive(Debug, Default)]
pub(super) struct ProcessMemory {
    pub(super) start_ticks: Option<u64>,
    pub(super) contexts: Contexts,
    /// Whether a list has contained it.
    pub(super) is_listed: bool,
    blocks: HashMap<Name, Block>,
    /// By address: the size and the handle.
    mappings: BTreeMap<u64, (u64, u64)>,
    ordinals: BTreeMap<Option<i32>, Ordinal>,
    pub(super) held: BTreeMap<DeviceNumber, Held>,
    doubts: BTreeMap<DeviceNumber, Doubt>,
    /// Whether it has been on more than one device at a time.
    was_on_several: bool,
    /// Whether it had more allocations than are remembered.
    is_full: bool,
    /// When the last call that gives memory back was over: a device that is not known yet may have been meant.
    given: Option<Duration>,
    /// Until when calls were lost: what was taken before may have been given back.
    lost: Option<Duration>,
}

impl ProcessMemory {
    /// Of a process whose calls were lost until this moment.
    pub(super) fn after(lost: Option<Duration>) -> Self {
        Self { lost, ..Self::default() }
    }

    /// How many allocations and mappings are remembered.
    pub(super) fn remembered(&self) -> usize {
        self.blocks.len() + self.mappings.len()
    }

    /// Calls were lost until this moment, which may have given any memory back.
    pub(super) fn lose_until(&mut self, moment: Duration) {
        self.forget();
        self.lost = self.lost.max(Some(moment));
        self.held.values_mut().for_each(|held| held.lose_until(moment));
    }

    /// Remembers no allocation any more, so that there is no bound until the process ends.
    pub(super) fn give_up(&mut self) {
        self.is_full = true;
        self.forget();
    }

    /// Forgets what has a name. What it was may live or not.
    fn forget(&mut self) {
        self.blocks.clear();
        self.mappings.clear();
        self.doubts.clear();
        self.ordinals.values_mut().for_each(|ordinal| ordinal.live = 0);
    }

    /// Takes in a call that gave memory back, and does not tell how much.
    fn lose(&mut self, span: Span) {
        self.held.values_mut().for_each(|held| held.lose(span));
    }

    pub(super) fn see(&mut self, event: &Event, ordinal: Option<i32>, places: Whereabouts<'_>) -> bool {
        let gives = event.kind == cuda_probe::Kind::Gives;
        // An earlier failure on the GPU can be the result of a call that gives back all the same.
        if event.result != 0 && (!gives || event.result == INVALID_VALUE) {
            return false;
        }
        let has_room = self.ordinals.len() < ORDINALS || self.ordinals.contains_key(&ordinal);
        let ordinal = ordinal.filter(|_| has_room);
        let span = Span { start: event.start, end: event.start + event.duration };
        if gives {
            self.given = self.given.max(Some(span.end));
        }
        if event.result != 0 {
            self.lose(span);
        }
        match event.call {
            Call::Free { address: 0 } => false,
            Call::Free { address } | Call::FreeAsync { address, .. } => {
                self.give((Kind::Address, address), span, places)
            }
            Call::Release { handle } => self.give((Kind::Handle, handle), span, places),
            Call::DestroyArray { array } => self.give((Kind::Array, array), span, places),
            Call::Map { address, size, handle, .. } => {
                self.map(address, (size, handle), span, places);
                false
            }
            Call::Unmap { address, size } => self.unmap(address, size, span, places),
            Call::DestroyContext { .. } | Call::ReleasePrimaryContext { .. } | Call::ResetPrimaryContext { .. } => {
                self.forget();
                self.lose(span);
                false
            }
            Call::TrimPool { .. } => {
                self.lose(span);
                false
            }
            call => match request(&call) {
                Some((name, bytes, class)) => {
                    let block = Block { taken: span.end, bytes, class, ordinal, mappings: 0, released: false };
                    self.take(name, block, span, places)
                }
                None => false,
            },
        }
    }

    fn take(&mut self, name: Name, block: Block, span: Span, places: Whereabouts<'_>) -> bool {
        if self.lost.is_some_and(|until| until >= span.end) {
            return false;
        }
        if self.remembered() >= OF_PROCESS {
            self.give_up();
        }
        if self.is_full {
            return false;
        }
        // The driver gave the name to something new, so what had it before was freed, unseen.
        if self.blocks.contains_key(&name) {
            self.drop_block(name, span, places);
        }
        self.blocks.insert(name, block);
        let Block { bytes, class, ordinal, .. } = block;
        if class == Class::Unfollowed {
            return false;
        }
        let device = self.device(ordinal, places);
        let known = self.ordinals.entry(ordinal).or_default();
        known.live = known.live.saturating_add(bytes);
        for device in self.held.keys() {
            let since = known.since.entry(*device).or_default();
            *since = since.saturating_add_unsigned(bytes);
        }
        if let Some(held) = device.and_then(|device| self.held.get_mut(&device)) {
            held.take(class, bytes, span);
        }
        device.is_some()
    }

    /// Takes in that something was freed by its name. What is not known has an unknown size.
    fn give(&mut self, name: Name, span: Span, places: Whereabouts<'_>) -> bool {
        match self.blocks.get_mut(&name) {
            Some(block) if block.mappings > 0 => block.released = true,
            Some(_) => self.drop_block(name, span, places),
            None => self.lose(span),
        }
        false
    }

    fn map(&mut self, address: u64, mapping: (u64, u64), span: Span, places: Whereabouts<'_>) {
        // Something is mapped where something else was, so that was unmapped, unseen.
        if let Some((_, before)) = self.mappings.remove(&address) {
            self.unmapped(before, span, places);
        }
        if self.remembered() < OF_PROCESS
            && let Some(block) = self.blocks.get_mut(&(Kind::Handle, mapping.1))
        {
            self.mappings.insert(address, mapping);
            block.mappings += 1;
        }
    }

    fn unmap(&mut self, address: u64, size: u64, span: Span, places: Whereabouts<'_>) -> bool {
        let end = address.saturating_add(size);
        let gone: Vec<(u64, u64)> = self.mappings.range(address..end).map(|(at, (_, handle))| (*at, *handle)).collect();
        if gone.is_empty() {
            self.lose(span);
        }
        for (at, handle) in gone {
            self.mappings.remove(&at);
            self.unmapped(handle, span, places);
        }
        false
    }

    fn unmapped(&mut self, handle: u64, span: Span, places: Whereabouts<'_>) {
        let name = (Kind::Handle, handle);
        if let Some(block) = self.blocks.get_mut(&name) {
            block.mappings = block.mappings.saturating_sub(1);
            if block.mappings == 0 && block.released {
                self.drop_block(name, span, places);
            }
        }
    }

    fn drop_block(&mut self, name: Name, span: Span, places: Whereabouts<'_>) {
        let Some(Block { bytes, class, ordinal, .. }) = self.blocks.remove(&name) else { return };
        if class == Class::Unfollowed {
            // Managed memory that was on the device is in the last reading.
            if bytes > 0 {
                self.lose(span);
            }
            return;
        }
        if let Some(known) = self.ordinals.get_mut(&ordinal) {
            known.live = known.live.saturating_sub(bytes);
            for device in self.held.keys() {
                let since = known.since.entry(*device).or_default();
                *since = since.saturating_sub_unsigned(bytes);
            }
        }
        let device = self.device(ordinal, places);
        // If it is not known, it may be on any device.
        let is_its = |on: &DeviceNumber| device.is_none_or(|device| device == *on);
        self.held.iter_mut().filter(|(on, _)| is_its(on)).for_each(|(_, held)| held.give(class, bytes, span));
        let before = self.doubts.iter_mut().filter(|(on, doubt)| is_its(on) && span.start <= doubt.complete);
        before.for_each(|(_, doubt)| doubt.over = doubt.over.saturating_sub(bytes));
    }

    /// The device with this ordinal; `None` if it is not known.
    pub(super) fn device(&self, ordinal: Option<i32>, places: Whereabouts<'_>) -> Option<DeviceNumber> {
        self.only(places).or_else(|| self.ordinals.get(&Some(ordinal?))?.device)
    }

    /// The device of a process that uses no other, whatever the ordinal: it is on no other list that began after the process
    /// was known to be on this one, and after it last made a context.
    fn only(&self, places: Whereabouts<'_>) -> Option<DeviceNumber> {
        let mut alive = places.iter().filter(|place| place.alive);
        let only = alive.next().filter(|_| alive.next().is_none())?;
        let is_listed = places.elsewhere > only.since.max(self.contexts.noted());
        (is_listed && !self.was_on_several && !self.contexts.are_several()).then_some(only.device)
    }

    /// Takes in a list with this process. Returns the correction.
    pub(super) fn read(&mut self, place: &Place, span: Span, places: Whereabouts<'_>) -> Option<u64> {
        self.was_on_several |= places.iter().filter(|place| place.alive).count() > 1;
        if self.doubts.remove(&place.device).is_some_and(|doubt| doubt.over > 0) {
            // Memory was given back, unseen: the program was replaced with `exec`, or the driver was unloaded.
            self.forget();
            self.held.values_mut().for_each(Held::lose_known);
        }
        if let Some(over) = place.used.and_then(|used| self.over(place.device, used, span, places)) {
            self.doubts.insert(place.device, Doubt { complete: span.end, over });
        }
        let given = self.given.max(self.lost);
        let held = self.held.entry(place.device).or_insert_with(|| Held::after(given));
        let before = held.reading();
        let correction = held.read(place.used, span);
        if let (Some(before), Some(now)) = (before, place.used) {
            learn(&mut self.ordinals, place.device, before, now);
        }
        for ordinal in self.ordinals.values_mut() {
            ordinal.since.insert(place.device, 0);
        }
        correction
    }

    /// By how much the allocations on a device that lived when a reading began exceed it.
    fn over(&self, device: DeviceNumber, used: u64, span: Span, places: Whereabouts<'_>) -> Option<u64> {
        // Nearly always the sum is enough: a reading has them and more.
        self.live(device, places).checked_sub(used).filter(|over| *over > 0)?;
        let is_in = |block: &&Block| block.taken < span.start && block.class != Class::Unfollowed;
        let its = self.blocks.values().filter(is_in).filter(|block| self.device(block.ordinal, places) == Some(device));
        its.map(|block| block.bytes).fold(0, u64::saturating_add).checked_sub(used).filter(|over| *over > 0)
    }

    /// Bytes in allocations on a device that are known to live.
    fn live(&self, device: DeviceNumber, places: Whereabouts<'_>) -> u64 {
        let its = self.ordinals.iter().filter(|(name, _)| self.device(**name, places) == Some(device));
        its.map(|(_, known)| known.live).fold(0, u64::saturating_add)
    }

    /// Bytes that the process held at least on a device at a moment; `None` if nothing is known.
    pub(super) fn at_least(&self, device: DeviceNumber, at: Duration, places: Whereabouts<'_>) -> Option<u64> {
        if self.is_full {
            return None;
        }
        let is_doubted = self.doubts.get(&device).is_some_and(|doubt| doubt.over > 0);
        let live = Some(self.live(device, places)).filter(|live| *live > 0 && !is_doubted);
        self.held.get(&device).and_then(|held| held.at_least(at)).max(live)
    }
}
