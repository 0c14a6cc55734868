//! Kubernetes device plugin: pods that ask for `urxe.dev/rdma` get the CDI device `urxe.dev/rdma=urxe0`.
//!
//! The kubelet finds plugins by their registration at its socket, and asks them which devices there are (`ListAndWatch`)
//! and what a container with some of them needs (`Allocate`). A urxe device takes nothing of the node, so that all
//! devices are the same one: their number is how many containers may have it.
//!
//! | module | |
//! |---|---|
//! | [`api`] | messages and gRPC services of the kubelet's API |
//! | [`specification`] | writes the CDI specification, by `urxe cdi` |
//! | [`plugin`] | the service `DevicePlugin` |
//! | [`kubelet`] | registration, again after each restart of the kubelet |

pub mod api;
pub mod kubelet;
pub mod plugin;
pub mod specification;
