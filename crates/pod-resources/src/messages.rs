//! The messages of the kubelet's pod-resources service, version v1, as far as they are read. Names and numbers are those of
//! the kubelet's `api.proto`. An answer's other fields (processors, memory, topology, claims) are skipped.
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
