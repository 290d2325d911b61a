//! Finds the GPUs of claims (dynamic resource allocation): the kubelet names the driver, the pool and the device, the driver's
//! ResourceSlice says which GPU that is, and the claim says with which rights it was allocated.
//!
//! Invariants: a device is assigned to a container only if all three sources have answered and the driver lists the GPU. A
//! device whose slice vanishes keeps its GPU as long as the kubelet lists it. What belongs to no GPU of NVIDIA is passed over;
//! anything else that cannot be assigned is counted, once for each device of a claim.

mod asked;
pub(crate) mod heard;
mod place;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pod_resources::{Claim, ClaimedDevice, PodContainer, PoolDevice};

use self::asked::Asked;
use self::place::{Place, place};
use super::api;
use super::api::claim::ClaimResult;
use super::api::slice::Published;
use super::api::slices::{DeviceKey, PoolKey, Slices};
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{ClaimAllocation, Driver};

/// How long a device may be without a GPU before that is a fault. A kubelet that restarts deletes the slices of its node, and
/// they are published again 8 to 31 s later; a driver that starts publishes them in a few seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two attempts to assign a device, as long as there is no fault.
const AGAIN: Duration = Duration::from_secs(1);

/// The most pools that are remembered as counted.
const MOST_POOLS: usize = 256;

/// Why a device of a claim is assigned to no GPU.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Problem {
    /// No API server is configured.
    #[error("which GPU it is, only the API server knows: set kubernetes.api-server")]
    NoServer,
    /// No complete pool of the node has the device.
    #[error("no ResourceSlice of this node has this device: is its driver running?")]
    NotPublished,
    /// No slice of the node is of the device's pool.
    #[error(
        "no ResourceSlice of this node belongs to its pool {pool}: either its driver does not run here, or the pool is offered to \
         several nodes, and the slices of such pools are not read; further devices of the pool are not reported"
    )]
    NoSlice { pool: String },
    /// The driver does not list the GPU.
    #[error("its ResourceSlice names {0}, which the NVIDIA driver does not list")]
    NotHere(String),
    /// Not exactly one MIG device of the GPU has the profile, or several devices of claims have it.
    #[error(
        "its ResourceSlice names a MIG device of the profile {profile} on {parent}, where the driver lists {count}, and \
         claims have {claimed}"
    )]
    Ambiguous { parent: String, profile: String, count: usize, claimed: usize },
    /// The claim does not contain the device.
    #[error("the claim's allocation does not contain it")]
    NotAllocated,
    /// The claim has not been read yet.
    #[error("the claim has not been read yet")]
    Unread,
    /// The claim cannot be read.
    #[error("the claim cannot be read")]
    Claim(#[source] api::error::Error),
}

impl Problem {
    fn reason(&self) -> Reason {
        match self {
            Self::NoServer | Self::NotPublished | Self::NoSlice { .. } | Self::NotHere(_) => Reason::NotFound,
            Self::Ambiguous { .. } | Self::NotAllocated => Reason::Inconsistent,
            Self::Unread => Reason::Timeout,
            Self::Claim(error) => error.reason(),
        }
    }
}

/// A device of a claim that is assigned to no GPU.
#[derive(Debug, thiserror::Error)]
#[error(
    "the device {} of the driver {} in the claim {}/{} is assigned to no GPU, so the containers on GPUs without an allocation \
     are found by their processes",
    device.device, device.driver, claim.namespace, claim.name
)]
struct Unassigned {
    claim: Arc<Claim>,
    device: PoolDevice,
    #[source]
    problem: Problem,
}

/// What is assigned, and what is not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Joined {
    /// The devices with their GPUs, in the order of the kubelet's answer.
    pub(super) assigned: Vec<ClaimAllocation>,
    /// The containers with a device of which it is not known whether and which GPU it is.
    pub(super) unassigned: Vec<Arc<PodContainer>>,
}

/// The claims that the kubelet lists, and what is known about them.
#[derive(Debug)]
pub(super) struct Claims {
    asked: Asked,
    faults: Arc<Faults>,
    patience: Duration,
    /// What was last published about each device that the kubelet lists.
    published: HashMap<DeviceKey, Published>,
    without: HashMap<(Arc<Claim>, PoolDevice), Without>,
    /// The pools without a slice on this node of which a device has been counted.
    elsewhere: HashSet<PoolKey>,
    /// Which of the claims of its name each claim is, as far as the kubelet's last answer shows it.
    identities: HashMap<Arc<Claim>, Identity>,
}

/// A device of a claim that is without a GPU.
#[derive(Debug)]
struct Without {
    since: Instant,
    /// Whether it has been counted as a fault.
    counted: bool,
    /// Whether the claim has not been read.
    unread: bool,
}

/// What tells a claim from a later one of the same name.
#[derive(Debug, Default)]
struct Identity {
    /// The names of its devices for the container runtime, which include the claim's uid with some drivers.
    cdi: BTreeSet<Arc<[String]>>,
    /// The pods that use it. A claim is not deleted while a pod uses it.
    pods: HashSet<(String, String)>,
}

impl Identity {
    /// The claims of the kubelet's answer.
    fn all(listed: &[ClaimedDevice]) -> HashMap<Arc<Claim>, Self> {
        let mut all: HashMap<_, Self> = HashMap::new();
        for ClaimedDevice { holder, claim, cdi, .. } in listed {
            let identity = all.entry(claim.clone()).or_default();
            identity.cdi.insert(cdi.clone());
            identity.pods.insert((holder.namespace.clone(), holder.pod.clone()));
        }
        all
    }

    /// Whether a later answer can be about another claim.
    fn may_be_another(&self, later: &Self) -> bool {
        self.cdi != later.cdi || self.pods.is_disjoint(&later.pods)
    }
}

impl Claims {
    /// `api`: the API server; `None` if the exporter does not use one.
    pub(super) fn new(api: Option<api::Settings>, patience: Duration, faults: Arc<Faults>) -> Self {
        let asked = Asked::new(api, faults.clone());
        let (published, without) = (HashMap::new(), HashMap::new());
        let (elsewhere, identities) = (HashSet::new(), HashMap::new());
        Self { asked, faults, patience, published, without, elsewhere, identities }
    }

    /// Waits until something has changed that could assign a device, or counts as a fault.
    pub(super) async fn changed(&mut self) {
        let again = if self.is_pending() { AGAIN } else { Duration::MAX };
        // Either the answer of a server, or the time; both are seen by the next call of [`Claims::join`].
        let _ = tokio::time::timeout(again, self.asked.changed()).await;
    }

    /// Whether a device is without a GPU that may soon have one, or belongs to a claim that has not been read: it may have a
    /// part of a GPU's memory.
    pub(super) fn is_pending(&self) -> bool {
        self.without.values().any(|device| !device.counted || device.unread)
    }

    /// Assigns the devices that the kubelet lists now.
    pub(super) fn join(&mut self, listed: &[ClaimedDevice], driver: &Driver, now: Instant) -> Joined {
        if listed.is_empty() && self.published.is_empty() && self.without.is_empty() && self.asked.is_idle() {
            return Joined::default();
        }
        if !listed.is_empty() {
            self.asked.follow_slices();
        }
        let identities = Identity::all(listed);
        for (claim, identity) in &identities {
            if self.identities.get(claim).is_some_and(|before| before.may_be_another(identity)) {
                self.asked.renew(claim, now);
            }
        }
        self.identities = identities;
        let slices = self.asked.slices();
        self.elsewhere.retain(|pool| !slices.pools.contains(pool));
        self.keep_published(listed, &slices);
        let mut joined = Joined::default();
        let (mut wanted, mut without) = (HashSet::new(), HashMap::new());
        for one in listed {
            match self.assign(one, &slices, driver, &mut wanted, now) {
                Ok(Some(assigned)) => joined.assigned.push(assigned),
                Ok(None) => {}
                Err(problem) => {
                    joined.unassigned.push(one.holder.clone());
                    let key = (one.claim.clone(), one.device.clone());
                    let (since, counted) =
                        self.without.get(&key).map_or((now, false), |before| (before.since, before.counted));
                    let unread = matches!(problem, Problem::Unread | Problem::Claim(_) | Problem::NotAllocated);
                    let waited = driver.up && now.saturating_duration_since(since) >= self.patience;
                    let pool = pool(&one.device);
                    let is_elsewhere = matches!(problem, Problem::NoSlice { .. }) && self.elsewhere.contains(&pool);
                    let counts = matches!(problem, Problem::NoServer) || waited || is_elsewhere;
                    // Several containers may have the device; it is counted once. A pool that is offered to other nodes too
                    // may have devices in every claim.
                    if counts && !counted && !is_elsewhere && !without.contains_key(&key) {
                        if matches!(problem, Problem::NoSlice { .. }) && self.elsewhere.len() < MOST_POOLS {
                            self.elsewhere.insert(pool);
                        }
                        let ClaimedDevice { claim, device, .. } = one.clone();
                        let reason = problem.reason();
                        let error = Unassigned { claim, device, problem };
                        self.faults.raise(Source::ResourceClaims, reason, None, &error);
                    }
                    without.insert(key, Without { since, counted: counted || counts, unread });
                }
            }
        }
        joined.unassigned.dedup();
        self.without = without;
        self.asked.keep(&wanted, now);
        joined
    }

    /// Takes over what the slices say now. A device that they no longer have keeps what was known.
    fn keep_published(&mut self, listed: &[ClaimedDevice], slices: &Slices) {
        let keys: HashSet<DeviceKey> = listed.iter().map(|one| key(&one.device)).collect();
        self.published.retain(|key, _| keys.contains(key));
        for key in keys {
            if let Some(published) = slices.devices.get(&key) {
                self.published.insert(key, published.clone());
            }
        }
    }

    /// How many of the devices that the kubelet lists are published with the same parent and profile and without a UUID.
    fn claimed_like(&self, published: &Published) -> usize {
        let is_alike = |other: &&Published| {
            other.uuid.is_none() && (&other.parent, &other.profile) == (&published.parent, &published.profile)
        };
        self.published.values().filter(is_alike).count()
    }

    /// The GPU of a device; `None` if it is no GPU of NVIDIA, or if the claim may only look at it. A claim that has to be read
    /// for that is added to `wanted`.
    fn assign(
        &mut self,
        one: &ClaimedDevice,
        slices: &Slices,
        driver: &Driver,
        wanted: &mut HashSet<Arc<Claim>>,
        now: Instant,
    ) -> Result<Option<ClaimAllocation>, Problem> {
        if !self.asked.has_server() {
            return Err(Problem::NoServer);
        }
        let published = self.published.get(&key(&one.device)).ok_or_else(|| {
            let is_listed = !slices.listed || slices.pools.contains(&pool(&one.device));
            if is_listed { Problem::NotPublished } else { Problem::NoSlice { pool: one.device.pool.clone() } }
        })?;
        let device = match place(published, driver, self.claimed_like(published))? {
            Place::Device(device) => device,
            Place::Elsewhere => return Ok(None),
        };
        wanted.insert(one.claim.clone());
        let results = self.asked.results(&one.claim, now)?;
        let own: Vec<_> = results.iter().filter(|result| is_of(result, &one.device)).collect();
        if own.is_empty() {
            // A claim of the same name has taken its place.
            self.asked.forget(&one.claim);
            return Err(Problem::NotAllocated);
        }
        let mut held = own.iter().filter(|result| result.admin_access != Some(true)).peekable();
        if held.peek().is_none() {
            return Ok(None);
        }
        // The driver may not tell its shares of one device apart. What cannot be read was counted when the claim was.
        let consumed = held.map(|result| result.memory().ok().flatten());
        let memory = consumed.reduce(|sum, more| Some(sum?.saturating_add(more?))).flatten();
        let ClaimedDevice { holder, claim, device: name, .. } = one.clone();
        Ok(Some(ClaimAllocation { holder, claim, name, device, memory }))
    }
}

fn pool(device: &PoolDevice) -> PoolKey {
    (device.driver.clone(), device.pool.clone())
}

fn key(device: &PoolDevice) -> DeviceKey {
    (device.driver.clone(), device.pool.clone(), device.device.clone())
}

/// Whether the result is for this device. Not every driver reports the share to the kubelet.
fn is_of(result: &ClaimResult, device: &PoolDevice) -> bool {
    let is_same = (&result.driver, &result.pool, &result.device) == (&device.driver, &device.pool, &device.device);
    is_same && (device.share.is_none() || result.share.is_none() || device.share == result.share)
}
