//! The two programs that make an API. In: a namespace and a folder. Out: both running, killed on drop.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{cached, logged};
use crate::netns::NetNs;
use crate::process::Background;

/// Server first: it goes before what it works on.
#[derive(Debug)]
pub(super) struct Processes {
    server: Background,
    etcd: Background,
}

impl Processes {
    pub(super) fn start(netns: &NetNs, folder: &Path) -> Result<Self> {
        let server = cached("kube-apiserver-1.20.2/kube-apiserver")?;
        let etcd = logged(netns, &PathBuf::from("etcd"), folder, "etcd.log")?
            .args(["--data-dir=etcd", "--unsafe-no-fsync", "--logger=zap"])
            .args([
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
            ])
            .args(["--listen-peer-urls=http://127.0.0.1:2380"])
            .spawn()
            .map(Background::new)
            .context("starting etcd; `cargo xtask setup kubernetes` installs it")?;
        let server = logged(netns, &server, folder, "kube-apiserver.log")?
            .args(["--etcd-servers=http://127.0.0.1:2379", "--cert-dir=certs"])
            .args(["--advertise-address=172.31.0.1", "--bind-address=172.31.0.1", "--secure-port=6443"])
            // Pods and nodes of this release have addresses of both families only where that is switched on.
            .args(["--feature-gates=IPv6DualStack=true"])
            .args(["--service-cluster-ip-range=10.0.0.0/24", "--token-auth-file=tokens.csv"])
            .args(["--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"])
            // Its own key signs as well as any; nobody here asks for a service account's token.
            .args(["--service-account-key-file=certs/apiserver.key"])
            .args(["--service-account-signing-key-file=certs/apiserver.key"])
            .args(["--service-account-issuer=https://kubernetes.default.svc"])
            .spawn()
            .map(Background::new)
            .context("starting kube-apiserver")?;
        Ok(Self { server, etcd })
    }

    /// Whether one of both is no more.
    pub(super) fn ended(&mut self) -> bool {
        [&mut self.server, &mut self.etcd]
            .into_iter()
            .any(|process| !matches!(process.child().try_wait(), Ok(None)))
    }

    pub(super) fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    pub(super) fn thaw(&mut self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.server.child().id())?;
        Ok(kill(Pid::from_raw(id), signal)?)
    }
}
