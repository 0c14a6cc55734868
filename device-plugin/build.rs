//! Generates client and server of the two gRPC services of the kubelet's device plugin API.

use tonic_build::manual::{Builder, Method, Service};

const CODEC: &str = "tonic_prost::ProstCodec";

fn method(name: &str, route: &str, input: &str, output: &str) -> tonic_build::manual::MethodBuilder {
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("crate::api::{input}"))
        .output_type(format!("crate::api::{output}"))
        .codec_path(CODEC)
}

fn main() {
    let registration = Service::builder()
        .name("Registration")
        .package("v1beta1")
        .method(method("register", "Register", "RegisterRequest", "Empty").build())
        .build();
    let options = method("get_device_plugin_options", "GetDevicePluginOptions", "Empty", "DevicePluginOptions");
    let devices = method("list_and_watch", "ListAndWatch", "Empty", "ListAndWatchResponse").server_streaming();
    let preferred = method(
        "get_preferred_allocation",
        "GetPreferredAllocation",
        "PreferredAllocationRequest",
        "PreferredAllocationResponse",
    );
    let allocate = method("allocate", "Allocate", "AllocateRequest", "AllocateResponse");
    let start = method("pre_start_container", "PreStartContainer", "PreStartContainerRequest", "Empty");
    let plugin = [options, devices, preferred, allocate, start]
        .into_iter()
        .fold(Service::builder().name("DevicePlugin").package("v1beta1"), |service, method| {
            service.method(method.build())
        })
        .build();
    Builder::new().compile(&[registration, plugin]);
}
