//! Activity of a GPU: utilization, power, temperature, clocks. All of it follows from its processes.

use super::{Gpu, Instance, Machine};
use crate::clock::{Nanos, SECOND};
use crate::stable_hash::fraction;

/// How often the driver samples a GPU; in between, it reports the last sample.
pub(crate) const LOOK: Nanos = SECOND / 5;

/// The activity of a GPU at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Activity {
    /// Live processes.
    pub(crate) processes: usize,
    /// Share of time during which a kernel is running.
    pub busy: f64,
}

impl Machine {
    /// The activity of a GPU or MIG device at the driver's last sample.
    pub fn activity(&self, gpu: &Gpu, instance: Option<&Instance>, now: Nanos) -> Activity {
        let look = now - now % LOOK;
        let (mut processes, mut busy) = (0, 0.0);
        for (process, life) in gpu.loads(instance).flat_map(|(load, _)| load.living(&self.processes, look)) {
            processes += usize::from(!process.is_orphaned());
            busy += process.busy(life, look);
        }
        Activity { processes, busy: busy.min(1.0) }
    }

    /// Watts.
    pub fn power(&self, gpu: &Gpu, now: Nanos) -> f64 {
        if let Some(fixed) = gpu.written.power {
            return fixed;
        }
        let [idle, context, full, _] = gpu.model.power;
        let activity = self.activity(gpu, None, now);
        let drawn = match activity.processes {
            0 => idle,
            _ => context + (full * 0.96 - context) * activity.busy,
        };
        drawn * (0.99 + 0.02 * fraction(gpu.key, (now / LOOK) as u64))
    }

    /// Degrees Celsius: follows the power over the last half minute.
    pub fn temperature(&self, gpu: &Gpu, now: Nanos) -> f64 {
        if let Some(fixed) = gpu.written.temperature {
            return fixed;
        }
        const LOOKS: i64 = 6;
        let mean = (0..LOOKS).map(|k| self.power(gpu, (now - k * 5 * SECOND).max(0))).sum::<f64>() / LOOKS as f64;
        let ([idle, _, full, _], [cool, hot]) = (gpu.model.power, gpu.model.temperature);
        cool + (hot - cool) * (mean - idle) / (full - idle)
    }

    /// MHz: graphics and SM, memory, video; 0 if the model does not report it.
    pub fn clocks(&self, gpu: &Gpu, now: Nanos) -> [u32; 3] {
        let [graphics, memory, video] = gpu.model.clocks;
        let activity = self.activity(gpu, None, now);
        let idle = gpu.model.idle_clock;
        match activity.processes {
            0 if gpu.model.drops_state => [idle, memory.min(405), video.min(idle)],
            0 => [idle, memory, video.min(idle)],
            _ => {
                let held_down = match () {
                    () if self.burning(gpu, now) => 0.5,
                    () if self.hot(gpu, now) => 0.8,
                    () if self.capped(gpu, now) => 0.94,
                    () => 1.0,
                };
                [(f64::from(graphics) * held_down) as u32, memory, video]
            }
        }
    }

    /// Whether the power limit reduces the clocks.
    pub(crate) fn capped(&self, gpu: &Gpu, now: Nanos) -> bool {
        self.power(gpu, now) > gpu.model.power[2] * 0.95
    }

    /// Whether heat reduces the clocks: the GPU is at its highest operating temperature.
    pub(crate) fn hot(&self, gpu: &Gpu, now: Nanos) -> bool {
        self.reaches(gpu, gpu.model.thresholds[3], now)
    }

    /// Whether the hardware halves the clocks because of heat.
    pub(crate) fn burning(&self, gpu: &Gpu, now: Nanos) -> bool {
        self.reaches(gpu, gpu.model.thresholds[1], now)
    }

    /// `threshold`: 0 if the model has none.
    fn reaches(&self, gpu: &Gpu, threshold: u32, now: Nanos) -> bool {
        threshold > 0 && self.temperature(gpu, now) >= f64::from(threshold)
    }
}
