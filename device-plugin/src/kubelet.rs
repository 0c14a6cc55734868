//! Serves the plugin on a socket beside the kubelet's, and registers it there.
//!
//! A kubelet that starts removes the sockets of all plugins and makes its own: each plugin has to serve anew and to
//! register again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use inotify::{Inotify, WatchMask};
use tokio::net::UnixListener;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};

use crate::api::device_plugin_server::DevicePluginServer;
use crate::api::registration_client::RegistrationClient;
use crate::api::{KUBELET_SOCKET, RegisterRequest, VERSION};
use crate::plugin::Plugin;

/// File name of the plugin's socket.
pub const SOCKET: &str = "urxe.sock";

/// Pause between two tries to register, while the kubelet starts.
const RETRY: Duration = Duration::from_secs(1);

/// Longest wait for the kubelet's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A plugin, and the folder of the kubelet's socket.
#[derive(Debug)]
pub struct Service {
    /// Answers the kubelet.
    pub plugin: Plugin,
    /// `/var/lib/kubelet/device-plugins`.
    pub folder: PathBuf,
    /// Name of the resource.
    pub resource: String,
}

impl Service {
    /// Serves until an error: a folder that is gone, a socket that cannot be made.
    ///
    /// # Errors
    /// Reason of the end.
    pub async fn run(&self) -> Result<()> {
        // Before the first look at the socket: nothing is missed.
        let inotify = Inotify::init().context("inotify")?;
        let events = WatchMask::CREATE | WatchMask::DELETE_SELF | WatchMask::ONLYDIR;
        inotify.watches().add(&self.folder, events).with_context(|| format!("watching {}", self.folder.display()))?;
        let mut changes = inotify.into_event_stream([0; 4096])?;
        loop {
            tokio::select! {
                ended = self.serve() => ended?,
                change = next_kubelet(&mut changes) => change.context(format!("watching {}", self.folder.display()))?,
            }
        }
    }

    /// Serves the plugin on a new socket; registers it as soon as the kubelet answers.
    async fn serve(&self) -> Result<()> {
        let socket = self.folder.join(SOCKET);
        remove(&socket)?;
        let listener = UnixListener::bind(&socket).with_context(|| format!("binding {}", socket.display()))?;
        let plugin = DevicePluginServer::new(self.plugin.clone());
        let server = Server::builder().serve_with_incoming(plugin, UnixListenerStream::new(listener));
        let registered = async {
            self.register_patiently().await;
            // The server ends this.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = server => ended.with_context(|| format!("serving {}", socket.display())),
            () = registered => Ok(()),
        }
    }

    /// Tries to register until it works. Reports the first failure: the kubelet may be about to start.
    async fn register_patiently(&self) {
        let mut reported = false;
        loop {
            match self.register().await {
                Ok(()) => return eprintln!("urxe-device-plugin: {} is registered", self.resource),
                Err(error) if !reported => eprintln!("urxe-device-plugin: no kubelet yet: {error:#}"),
                Err(_) => {}
            }
            reported = true;
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn register(&self) -> Result<()> {
        let kubelet = self.folder.join(KUBELET_SOCKET);
        let uri = format!("unix:{}", kubelet.to_str().context("a folder that is not UTF-8")?);
        let channel = Endpoint::from_shared(uri)?.connect_timeout(TIMEOUT).timeout(TIMEOUT).connect().await;
        let mut client = RegistrationClient::new(channel.with_context(|| kubelet.display().to_string())?);
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: SOCKET.to_owned(),
            resource_name: self.resource.clone(),
            options: None,
        };
        client.register(request).await.context("registering")?;
        Ok(())
    }

    /// Removes the plugin's socket.
    ///
    /// # Errors
    /// Errors of unlink(2); a socket that is gone already is none.
    pub fn remove_socket(&self) -> Result<()> {
        remove(&self.folder.join(SOCKET))
    }
}

/// Returns when a kubelet has made its socket.
async fn next_kubelet(changes: &mut inotify::EventStream<[u8; 4096]>) -> Result<()> {
    while let Some(event) = changes.next().await {
        // An event without a name is one of the folder itself.
        let name = event?.name.context("the folder is gone")?;
        if name == KUBELET_SOCKET {
            return Ok(());
        }
    }
    anyhow::bail!("no more events")
}

fn remove(socket: &Path) -> Result<()> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", socket.display()))
        }
        _ => Ok(()),
    }
}
