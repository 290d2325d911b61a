//! Lets one refusal of each process on each device become an incident in a while. All are counted; a process that is refused
//! again and again must not displace the incidents of others from the queue to the recorder.

use std::collections::HashMap;
use std::time::Duration;

use super::account::Refusal;
use gpu_readings::snapshot::ProcessId;

/// How long no further refusal passes. The recorder makes one incident of those within some seconds.
const WHILE: Duration = Duration::from_secs(1);

/// The refusals that passed a moment ago.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    passed: HashMap<(ProcessId, String), Duration>,
}

impl Sieve {
    /// Those of these refusals that pass at this moment, in their order.
    pub(super) fn pass(&mut self, mut refusals: Vec<Refusal>, now: Duration) -> Vec<Refusal> {
        self.passed.retain(|_, passed| now.saturating_sub(*passed) < WHILE);
        refusals.retain(|refusal| {
            let key = (refusal.process, refusal.device.uuid().to_owned());
            let passes = !self.passed.contains_key(&key);
            if passes {
                self.passed.insert(key, now);
            }
            passes
        });
        refusals
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::places::Device;
    use gpu_readings::snapshot::Gpu;

    fn refusal(pid: u32, gpu: u32, asked: u64) -> Refusal {
        let process = ProcessId { pid, start_ticks: Some(1) };
        let gpu = Arc::new(Gpu { index: gpu, uuid: format!("GPU-{gpu}"), ..Gpu::default() });
        Refusal { at: Duration::ZERO, asked, process, device: Device { gpu, mig: None } }
    }

    #[test]
    fn a_storm_passes_once_in_a_while_and_hides_no_other() {
        let mut sieve = Sieve::default();
        let mut passed = |from: u64, millis| {
            let storm = (from..from + 10_000).map(|asked| refusal(1, 0, asked));
            let refusals = storm.chain([refusal(2, 0, 5), refusal(1, 1, 6)]).collect();
            let passed = sieve.pass(refusals, Duration::from_millis(millis));
            passed.iter().map(|refusal| refusal.asked).collect::<Vec<_>>()
        };
        assert_eq!(passed(100, 0), [100, 5, 6]);
        assert!(passed(200, 999).is_empty());
        assert_eq!(passed(300, 1000), [300, 5, 6]);
        assert_eq!(sieve.passed.len(), 3);
        sieve.pass(Vec::new(), Duration::from_secs(60));
        assert!(sieve.passed.is_empty());
    }
}
