//! Generates the clients and servers of the gRPC services. The messages are structs of this crate,
//! so a build needs no `protoc`.

use tonic_build::manual::{Builder, Method, Service};

/// A service: the module of its messages, its package and name, and its methods.
struct Described {
    module: &'static str,
    package: &'static str,
    name: &'static str,
    methods: &'static [Call],
}

/// A method: its name in Rust and on the wire, and the messages that it takes and returns.
struct Call(&'static str, &'static str, [&'static str; 2]);

fn main() {
    Builder::new().compile(&SERVICES.map(|it| it.service()));
}

impl Described {
    fn service(&self) -> Service {
        let service = Service::builder().package(self.package).name(self.name);
        let methods = self.methods.iter().map(|it| it.method(self.module));
        methods
            .fold(service, tonic_build::manual::ServiceBuilder::method)
            .build()
    }
}

impl Call {
    fn method(&self, module: &str) -> Method {
        let Self(name, route, types) = self;
        let [input, output] = types.map(|it| format!("crate::{module}::{it}"));
        let method = Method::builder().name(name).route_name(route);
        let method = method.input_type(input).output_type(output);
        let method = method.codec_path("tonic_prost::ProstCodec");
        // The only method whose answers do not end.
        let is_stream = *route == "ListAndWatch";
        if is_stream {
            method.server_streaming()
        } else {
            method
        }
        .build()
    }
}

const SERVICES: [Described; 4] = [
    Described {
        module: "device_plugin",
        package: "v1beta1",
        name: "Registration",
        methods: &[Call("register", "Register", ["RegisterRequest", "Empty"])],
    },
    Described {
        module: "device_plugin",
        package: "v1beta1",
        name: "DevicePlugin",
        methods: &[
            Call(
                "get_device_plugin_options",
                "GetDevicePluginOptions",
                ["Empty", "DevicePluginOptions"],
            ),
            Call(
                "list_and_watch",
                "ListAndWatch",
                ["Empty", "ListAndWatchResponse"],
            ),
            Call(
                "get_preferred_allocation",
                "GetPreferredAllocation",
                ["PreferredAllocationRequest", "PreferredAllocationResponse"],
            ),
            Call(
                "allocate",
                "Allocate",
                ["AllocateRequest", "AllocateResponse"],
            ),
            Call(
                "pre_start_container",
                "PreStartContainer",
                ["PreStartContainerRequest", "PreStartContainerResponse"],
            ),
        ],
    },
    Described {
        module: "pod_resources",
        package: "v1",
        name: "PodResourcesLister",
        methods: &[
            Call("list", "List", ["ListRequest", "ListResponse"]),
            Call(
                "get_allocatable_resources",
                "GetAllocatableResources",
                ["AllocatableRequest", "AllocatableResponse"],
            ),
        ],
    },
    Described {
        module: "cri",
        package: "runtime.v1",
        name: "RuntimeService",
        methods: &[
            Call("version", "Version", ["VersionRequest", "VersionResponse"]),
            Call(
                "list_pod_sandbox",
                "ListPodSandbox",
                ["ListPodSandboxRequest", "ListPodSandboxResponse"],
            ),
        ],
    },
];
