//! The plugin's program and a kubelet that registers plugins, lists their devices and allocates some, as the real one does.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::net::UnixListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use urxe_device_plugin::api::device_plugin_client::DevicePluginClient;
use urxe_device_plugin::api::registration_server::{Registration, RegistrationServer};
use urxe_device_plugin::api::{
    AllocateRequest, ContainerAllocateRequest, Empty, HEALTHY, KUBELET_SOCKET, RegisterRequest,
};

/// Passes registrations on.
struct Registrations(mpsc::UnboundedSender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Registrations {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.send(request.into_inner()).map_err(|_| Status::unavailable("the test has ended"))?;
        Ok(Response::new(Empty {}))
    }
}

/// The kubelet's half: its socket in the folder of plugins.
struct Kubelet {
    folder: PathBuf,
    registrations: mpsc::UnboundedReceiver<RegisterRequest>,
    server: JoinHandle<()>,
}

impl Kubelet {
    /// Starts as the kubelet does: removes all sockets, then makes its own.
    fn start(folder: &Path) -> Self {
        for entry in folder.read_dir().unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let (sender, registrations) = mpsc::unbounded_channel();
        let listener = UnixListener::bind(folder.join(KUBELET_SOCKET)).unwrap();
        let registrar = RegistrationServer::new(Registrations(sender));
        let server = Server::builder().serve_with_incoming(registrar, UnixListenerStream::new(listener));
        let server = tokio::spawn(async move { server.await.unwrap() });
        Self { folder: folder.to_owned(), registrations, server }
    }

    /// The next plugin that registers.
    async fn plugin(&mut self) -> DevicePluginClient<Channel> {
        let request = self.registrations.recv().await.unwrap();
        assert_eq!((&*request.version, &*request.resource_name), ("v1beta1", "urxe.dev/rdma"));
        let socket = self.folder.join(request.endpoint);
        let uri = format!("unix:{}", socket.to_str().unwrap());
        DevicePluginClient::new(Endpoint::from_shared(uri).unwrap().connect().await.unwrap())
    }
}

/// A node: folders, and the command `urxe` that the build has made.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(node.plugins()).unwrap();
        node
    }

    fn plugins(&self) -> PathBuf {
        self.0.path().join("device-plugins")
    }

    /// The program, with three devices that are all of `urxe cdi`'s.
    fn plugin(&self) -> Command {
        let build = std::env::var_os("URXE_BIN_DIR").expect("URXE_BIN_DIR names the build: make device-plugin");
        let mut command = Command::new(env!("CARGO_BIN_EXE_urxe-device-plugin"));
        command.arg("--urxe").arg(Path::new(&build).join("urxe")).arg("--plugins").arg(self.plugins());
        command.arg("--dir").arg(self.0.path().join("files")).arg("--cdi-dir").arg(self.0.path().join("cdi"));
        command.args(["--count", "3"]).kill_on_drop(true);
        command
    }

    fn specification(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.0.path().join("cdi/urxe.json")).unwrap()).unwrap()
    }
}

async fn end(mut program: Child) {
    let pid = program.id().unwrap().to_string();
    assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
    assert!(program.wait().await.unwrap().success());
}

fn request(ids: &[&[&str]]) -> AllocateRequest {
    let of = |ids: &&[&str]| ContainerAllocateRequest { devices_ids: ids.iter().map(|id| (*id).to_owned()).collect() };
    AllocateRequest { container_requests: ids.iter().map(of).collect() }
}

#[tokio::test]
async fn containers_get_a_device_of_the_specification() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(&node.plugins());
    let program = node.plugin().args(["--device", "all", "--", "--netdev", "lo,lo"]).spawn().unwrap();
    let mut plugin = kubelet.plugin().await;
    let options = plugin.get_device_plugin_options(Empty {}).await.unwrap().into_inner();
    assert!(!options.pre_start_required && !options.get_preferred_allocation_available);
    let mut lists = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
    let devices = lists.message().await.unwrap().unwrap().devices;
    assert!(devices.len() == 3 && devices.iter().all(|device| device.health == HEALTHY), "{devices:?}");

    let ids: Vec<&str> = devices.iter().map(|device| &*device.id).collect();
    let response = plugin.allocate(request(&[&ids[..1], &ids[1..]])).await.unwrap().into_inner();
    let names = response.container_responses.iter().map(|it| it.cdi_devices.iter().map(|it| &*it.name));
    let names: Vec<Vec<&str>> = names.map(Iterator::collect).collect();
    assert_eq!(names, [["urxe.dev/rdma=all"], ["urxe.dev/rdma=all"]]);
    let said = plugin.allocate(request(&[&["rdma-3"]])).await.unwrap_err();
    assert_eq!((said.code(), said.message()), (Code::InvalidArgument, "no device rdma-3"));

    let specification = node.specification();
    assert_eq!(specification["kind"], "urxe.dev/rdma");
    let known: Vec<&serde_json::Value> =
        specification["devices"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(known, ["urxe0", "urxe1", "all"]);
    let mounted = specification["containerEdits"]["mounts"][0]["hostPath"].as_str().unwrap();
    assert!(Path::new(mounted).join("liburxe.so").is_file());

    end(program).await;
    assert!(!node.plugins().join("urxe.sock").exists());
}

#[tokio::test]
async fn a_kubelet_that_starts_again_is_told_again() {
    let node = Node::new();
    // The kubelet comes late, and goes.
    let program = node.plugin().spawn().unwrap();
    for _ in 0..3 {
        let mut kubelet = Kubelet::start(&node.plugins());
        let mut plugin = kubelet.plugin().await;
        let mut lists = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
        assert_eq!(lists.message().await.unwrap().unwrap().devices.len(), 3);
        kubelet.server.abort();
    }
    end(program).await;
}

#[tokio::test]
async fn mistakes_end_the_plugin() {
    let node = Node::new();
    for (arguments, reason) in [
        (&["--device", "urxe7"][..], "--device urxe7: `urxe cdi` has urxe0, all"),
        (&["--", "--mtu", "77"], "--mtu"),
        (&[], "watching"),
    ] {
        if arguments.is_empty() {
            std::fs::remove_dir(node.plugins()).unwrap();
        }
        let mut command = node.plugin();
        let said = command.args(arguments).stderr(Stdio::piped()).output().await.unwrap();
        let stderr = String::from_utf8(said.stderr).unwrap();
        assert!(!said.status.success() && stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}
