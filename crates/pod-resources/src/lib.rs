//! A client for the kubelet's pod-resources socket for NVIDIA GPUs: which device is allocated to which container, which
//! devices of claims its containers use (dynamic resource allocation), and which devices are allocatable.
//!
//! [`Kubelet`] connects to the socket and makes the two requests of the service, version 1. [`Device::read`] reads the
//! ids that device plugins give to NVIDIA GPUs, and needs no kubelet.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use pod_resources::{DeviceName, Error, Kubelet};
//!
//! # async fn example() -> Result<(), Error> {
//! let mut kubelet = Kubelet::connect("/var/lib/kubelet/pod-resources/kubelet.sock", Duration::from_secs(5)).await?;
//! let allocated = kubelet.allocated().await?;
//! for allocation in &allocated.devices {
//!     let (holder, device) = (&allocation.holder, &allocation.device);
//!     if let DeviceName::Gpu(uuid) = &device.device {
//!         println!("{}/{}/{}: {uuid}", holder.namespace, holder.pod, holder.container);
//!     }
//! }
//! for claimed in &allocated.claimed {
//!     let (claim, device) = (&claimed.claim, &claimed.device);
//!     println!("{}/{}: {} of {}", claim.namespace, claim.name, device.device, device.driver);
//! }
//! match kubelet.allocatable().await {
//!     Ok(devices) => println!("{} devices are allocatable", devices.len()),
//!     Err(Error::Refused { .. }) => println!("this kubelet does not list allocatable devices"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Reading a device's id without a kubelet:
//!
//! ```
//! use pod_resources::{Device, DeviceName};
//!
//! let device = Device::read("nvidia.com/gpu.shared", "GPU-b4c0ffee-0123-4567-89ab-0123456789ab::3").unwrap();
//! assert_eq!(device.device, DeviceName::Gpu("GPU-b4c0ffee-0123-4567-89ab-0123456789ab".to_owned()));
//! assert_eq!(device.replica.as_deref(), Some("3"));
//! // A bare number counts only for a resource with a name that NVIDIA's plugin gives.
//! assert_eq!(Device::read("example.org/gpu", "0"), None);
//! ```
//!
//! # What can be trusted
//!
//! The peer is treated as hostile. Every step ends within the limit, an answer longer than 4 MiB is refused, and an
//! answer that cannot be fully understood is discarded as a whole. Two answers with the same content give equal
//! results: the kubelet lists pods and devices in any order, but the result is sorted and names each device of a
//! container once.
//!
//! An allocated device does not prove that its container uses it. Names of pods, containers, claims and devices are
//! returned unchanged; an entry with an empty name, or with one longer than 256 bytes, is left out. The devices of a claim are
//! those of any driver, and their names do not say which GPU they are: its driver publishes that in a `ResourceSlice`.
//!
//! # When to connect
//!
//! A kubelet that restarts replaces its socket. Therefore, open a new connection for each round of requests, and drop
//! the [`Kubelet`] afterwards. The client needs a tokio runtime with I/O and time enabled.

mod answer;
mod device;
mod error;
mod kubelet;
mod messages;

#[doc(hidden)]
pub mod internals;

pub use answer::{Allocated, Allocation, Claim, ClaimedDevice, PodContainer, PoolDevice};
pub use device::{Device, DeviceName};
pub use error::{Error, Lost, Malformed};
pub use kubelet::Kubelet;
