//! The join of claims, slices and devices with texts in place of servers, for the workspace's properties.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pod_resources::{Claim, ClaimedDevice, PodContainer};

use super::{Claims, api};
use crate::faults::Faults;
use crate::kubernetes::api::claim::ResourceClaim;
use crate::kubernetes::api::follower::Store;
use crate::kubernetes::api::list_watch::{List, WatchEvent};
use crate::kubernetes::api::slice::ResourceSlice;
use crate::kubernetes::api::slices::SliceIndex;
use crate::snapshot::{ClaimAllocation, Driver};

/// What is known about claims. Requires a runtime, of which nothing is awaited.
#[derive(Debug)]
pub struct Heard {
    claims: Claims,
    slices: SliceIndex,
}

impl Heard {
    /// Nothing is known yet; a device without a GPU is a fault at once.
    pub fn new(faults: Arc<Faults>) -> Self {
        let server = api::Server::At { url: "http://127.0.0.1:9".to_owned(), token_file: None, ca_file: None };
        let settings = api::Settings {
            server,
            node: "node-1".to_owned(),
            timeout: Duration::from_secs(1),
            list_again: api::LIST_AGAIN,
            labels: Arc::default(),
        };
        let claims = Claims::new(Some(settings), Duration::ZERO, faults);
        let slices = SliceIndex::new(claims.asked.publisher());
        Self { claims, slices }
    }

    /// Applies a list of slices, or a line of a watch. False if it is neither.
    pub fn slices(&mut self, text: &[u8]) -> bool {
        let now = Instant::now();
        let applied = match serde_json::from_slice::<List<ResourceSlice>>(text) {
            Ok(list) => self.slices.replace(list.items.kept, now),
            Err(_) => match serde_json::from_slice::<WatchEvent<ResourceSlice>>(text) {
                Ok(WatchEvent::Added(slice) | WatchEvent::Modified(slice)) => self.slices.put(&slice, now),
                Ok(WatchEvent::Deleted(slice)) => self.slices.remove(&slice, now),
                Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) => Ok(()),
                Err(_) => return false,
            },
        };
        let changed = self.slices.take_change();
        self.slices.publish(true, changed);
        applied.is_ok()
    }

    /// The answer to the request for a claim. False if it cannot be read, or if the claim is not asked for.
    pub fn claim(&mut self, claim: &Claim, text: &[u8]) -> bool {
        let answer = serde_json::from_slice::<ResourceClaim>(text);
        answer.is_ok_and(|answer| self.claims.asked.hear(claim, answer.into_results()))
    }

    /// The devices with their GPUs, and the containers with a device of which it is not known.
    pub fn join(
        &mut self,
        listed: &[ClaimedDevice],
        driver: &Driver,
    ) -> (Vec<ClaimAllocation>, Vec<Arc<PodContainer>>) {
        let joined = self.claims.join(listed, driver, Instant::now());
        (joined.assigned, joined.unassigned)
    }
}
