//! The messages of the kubelet's pod-resources service, version v1, as far as they are read. Names and numbers are those of
//! the kubelet's `api.proto`. An answer's other fields (processors, memory, topology) are skipped.
//!
//! Both requests are empty messages.

/// What `List` answers: the devices that are allocated to the containers of this node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPodResourcesResponse {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// A pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// A container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    /// Its name within the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its devices.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Its claims.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// A claim that a container uses.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DynamicResource {
    /// The claim's name.
    #[prost(string, tag = "2")]
    pub claim_name: String,
    /// The claim's namespace.
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    /// Its devices; none before they are prepared.
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// A device of a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimResource {
    /// Its names for the container runtime.
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<CdiDevice>,
    /// The driver.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// The driver's pool.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    /// The device in the pool.
    #[prost(string, tag = "4")]
    pub device_name: String,
    /// The share of the device, where the driver reports one.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// A device as the container runtime knows it (Container Device Interface).
#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    /// Its full name, `VENDOR/CLASS=NAME`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Devices of one kind. A container can have several of these for the same kind, such as one for each NUMA node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// The name of the kind.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The ids that the device plugin gave to the devices.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// What `GetAllocatableResources` answers: the allocatable devices of this node. Not every kubelet lists them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocatableResourcesResponse {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}
