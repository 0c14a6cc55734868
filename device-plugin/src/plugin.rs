//! The gRPC service `DevicePlugin`: devices of the node, and what containers with them need.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::api::device_plugin_server::DevicePlugin;
use crate::api::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateRequest, ContainerAllocateResponse, Device,
    DevicePluginOptions, Empty, HEALTHY, ListAndWatchResponse, PreStartContainerRequest, PreferredAllocationRequest,
    PreferredAllocationResponse,
};

/// A number of devices, all of which are one CDI device.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Qualified name of the CDI device.
    name: String,
    ids: Vec<String>,
}

impl Plugin {
    /// `count` devices that stand for the CDI device `name`.
    #[must_use]
    pub fn new(name: String, count: usize) -> Self {
        Self { name, ids: (0..count).map(|number| format!("rdma-{number}")).collect() }
    }

    fn allocate(&self, request: &ContainerAllocateRequest) -> Result<ContainerAllocateResponse, Status> {
        if let Some(unknown) = request.devices_ids.iter().find(|id| !self.ids.contains(id)) {
            return Err(Status::invalid_argument(format!("no device {unknown}")));
        }
        // Two devices of a container are the same one, which engines want named once.
        Ok(ContainerAllocateResponse { cdi_devices: vec![CdiDevice { name: self.name.clone() }] })
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    /// Lists the devices once: none ever fails. The kubelet takes the end of the stream for the plugin's end.
    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let device = |id: &String| Device { id: id.clone(), health: HEALTHY.to_owned() };
        let list = ListAndWatchResponse { devices: self.ids.iter().map(device).collect() };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(list)).chain(tokio_stream::pending()))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("all devices are alike"))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.get_ref().container_requests.iter();
        let container_responses = containers.map(|container| self.allocate(container)).collect::<Result<_, _>>()?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(&self, _: Request<PreStartContainerRequest>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }
}
