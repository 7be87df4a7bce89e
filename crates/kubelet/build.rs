//! Generates the clients and servers of the gRPC services. The messages are structs of this crate,
//! so a build needs no `protoc`.

use heck::ToSnakeCase as _;
use tonic_build::manual::{Builder, Method, Service, ServiceBuilder};

fn main() {
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>().try_into();
    let methods: Vec<[&str; 5]> = METHODS.lines().flat_map(words).collect();
    let services = methods.chunk_by(|one, other| one[1] == other[1]);
    let services: Vec<_> = services.filter_map(service).collect();
    Builder::new().compile(&services);
}

fn service(methods: &[[&str; 5]]) -> Option<Service> {
    let (package, name) = methods.first()?[1].rsplit_once('.')?;
    let service = Service::builder().package(package).name(name);
    let methods = methods.iter().map(method);
    Some(methods.fold(service, ServiceBuilder::method).build())
}

fn method([module, _, name, input, output]: &[&str; 5]) -> Method {
    let [input, output] = [input, output].map(|it| format!("crate::{module}::{it}"));
    let method = Method::builder()
        .name(name.to_snake_case())
        .route_name(name);
    let method = method.input_type(input).output_type(output);
    let method = method.codec_path("tonic_prost::ProstCodec");
    match *name {
        // The only method whose answers do not end.
        "ListAndWatch" => method.server_streaming().build(),
        _ => method.build(),
    }
}

/// The methods, ordered by service: the module of the messages, the service, the method, and the
/// messages that it takes and returns.
const METHODS: &str = "\
device_plugin v1beta1.Registration Register RegisterRequest Empty
device_plugin v1beta1.DevicePlugin GetDevicePluginOptions Empty DevicePluginOptions
device_plugin v1beta1.DevicePlugin ListAndWatch Empty ListAndWatchResponse
device_plugin v1beta1.DevicePlugin GetPreferredAllocation PreferredAllocationRequest PreferredAllocationResponse
device_plugin v1beta1.DevicePlugin Allocate AllocateRequest AllocateResponse
device_plugin v1beta1.DevicePlugin PreStartContainer PreStartContainerRequest PreStartContainerResponse
pod_resources v1.PodResourcesLister List ListRequest ListResponse
pod_resources v1.PodResourcesLister GetAllocatableResources AllocatableRequest AllocatableResponse
cri runtime.v1.RuntimeService Version VersionRequest VersionResponse
cri runtime.v1.RuntimeService ListPodSandbox ListPodSandboxRequest ListPodSandboxResponse";
