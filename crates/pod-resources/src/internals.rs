//! Parts of the crate for the workspace's own tests and fuzz targets. Nothing here is guaranteed to be stable.

pub use crate::answer::{allocatable, allocated};
pub use crate::messages::{
    AllocatableResourcesResponse, CdiDevice, ClaimResource, ContainerDevices, ContainerResources, DynamicResource,
    ListPodResourcesResponse, PodResources,
};
