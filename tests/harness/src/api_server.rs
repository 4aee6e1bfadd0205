//! A real Kubernetes API server with its etcd. In: namespaces that shall reach it. Out: the API on a network of its
//! own, kubeconfig files, `kubectl`; all gone on drop.
//!
//! ```text
//!  etcd ─ 127.0.0.1 ─ kube-apiserver ─ 172.31.0.1 mgmt0 ┬══ mgmt0 ─ node-1   172.31.0.2
//!                                                       └══ mgmt0 ─ node-2   172.31.0.3
//! ```
//! Nothing schedules pods or runs them: a test sets their status itself.

mod processes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::netns::NetNs;
use processes::Processes;

/// Where the API is served.
const URL: &str = "https://172.31.0.1:6443";
/// Who may do everything: `kubectl` of the tests.
const ADMIN: &str = "admin";
/// As whom agents ask: what the manifests of `deploy/` give rights to.
const AGENT: &str = "system:serviceaccount:podwire-system:podwire-agent";

/// The server, its objects, and the network on which it is reached.
#[derive(Debug)]
pub struct ApiServer {
    processes: Option<Processes>,
    folder: TempDir,
    netns: NetNs,
    last_address: AtomicU8,
}

impl ApiServer {
    /// Starts the server with no objects but its own, and waits until it is ready: 5 to 10 seconds.
    ///
    /// # Errors
    /// Without root, or where `cargo xtask setup kubernetes` has not been; with what the server logged.
    pub fn start() -> Result<Self> {
        let netns = NetNs::new("api")?;
        netns.ip(&["link", "add", "mgmt0", "type", "bridge", "mcast_snooping", "0"])?;
        netns.ip(&["addr", "add", "172.31.0.1/24", "dev", "mgmt0"])?;
        netns.ip(&["link", "set", "mgmt0", "up"])?;
        // The server looks for its own address by the default route.
        netns.ip(&["route", "add", "default", "dev", "mgmt0"])?;
        let folder = tempfile::Builder::new().prefix("podwire-test-").tempdir_in("/run")?;
        let tokens =
            format!("admin,{ADMIN},1,\"system:masters\"\nagent,{AGENT},2,\"system:serviceaccounts\"\n");
        std::fs::write(folder.path().join("tokens.csv"), tokens)?;
        let mut server = Self { processes: None, folder, netns, last_address: AtomicU8::new(1) };
        server.resume()?;
        server.write_kubeconfig("admin")?;
        server.write_kubeconfig("agent")?;
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Gives a namespace a cable to the server, `mgmt0` at its end.
    ///
    /// # Errors
    /// When it has one.
    pub fn connect(&self, node: &NetNs) -> Result<()> {
        let number = self.last_address.fetch_add(1, Ordering::Relaxed) + 1;
        let port = format!("node{number}");
        let near = ["link", "add", &port, "type", "veth"];
        let far = ["peer", "name", "mgmt0", "netns", node.name()];
        self.netns.ip(&[&near[..], &far[..]].concat())?;
        self.netns.ip(&["link", "set", &port, "master", "mgmt0", "up"])?;
        node.ip(&["addr", "add", &format!("172.31.0.{number}/24"), "dev", "mgmt0"])?;
        node.ip(&["link", "set", "mgmt0", "up"]).map(drop)
    }

    /// For agents, in any namespace that is connected.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("agent.kubeconfig")
    }

    /// Ends server and etcd; the objects stay.
    pub fn stop(&mut self) {
        self.processes = None;
    }

    /// Starts them again with the objects that there were.
    ///
    /// # Errors
    /// When it does not become ready; with what it logged.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        self.resume()?;
        self.wait_until_ready()
    }

    /// Stops the server in the middle of whatever it does, until [`ApiServer::thaw`]; connections stay open.
    ///
    /// # Errors
    /// When it does not run.
    pub fn freeze(&mut self) -> Result<()> {
        self.processes.as_mut().context("the server does not run")?.freeze()
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn thaw(&mut self) -> Result<()> {
        self.processes.as_mut().context("the server does not run")?.thaw()
    }

    /// Runs `kubectl` with all rights.
    ///
    /// # Errors
    /// When there is none.
    pub fn kubectl(&self, words: &[&str]) -> Result<Output> {
        self.kubectl_with(words, "")
    }

    /// Runs `kubectl`, which must succeed; returns what it printed.
    ///
    /// # Errors
    /// When it fails; with what it said.
    pub fn kubectl_ok(&self, words: &[&str]) -> Result<String> {
        successful(words, self.kubectl(words)?)
    }

    /// `kubectl apply -f -` of objects; returns what it printed.
    ///
    /// # Errors
    /// When one is refused; with what it said.
    pub fn apply(&self, objects: &str) -> Result<String> {
        let words = ["apply", "--validate=false", "-f", "-"];
        successful(&words, self.kubectl_with(&words, objects)?)
    }

    /// Sets an object's status, as a kubelet would; `kind` as `kubectl` names it.
    ///
    /// # Errors
    /// When it is refused; with what it said.
    pub fn set_status(&self, kind: &str, name: &str, status: &Value) -> Result<()> {
        let patch = json!({"status": status}).to_string();
        self.kubectl_ok(&["patch", kind, name, "--subresource=status", "--type=merge", "-p", &patch])
            .map(drop)
    }

    /// As [`ApiServer::kubectl`], with something on standard input.
    ///
    /// # Errors
    /// When there is no `kubectl`.
    pub fn kubectl_with(&self, words: &[&str], input: &str) -> Result<Output> {
        let program = kubectl()?;
        let mut child = self
            .netns
            .command(&program.to_string_lossy())
            .arg("--kubeconfig")
            .arg(self.folder.path().join("admin.kubeconfig"))
            .arg("--cache-dir")
            .arg(self.folder.path().join("kubectl-cache"))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting kubectl")?;
        let mut pipe = child.stdin.take().context("a pipe to kubectl")?;
        // One that reads nothing closes its end early, which is no fault of the caller's.
        let _ = pipe.write_all(input.as_bytes());
        drop(pipe);
        Ok(child.wait_with_output()?)
    }

    /// What etcd and the server logged.
    pub fn log(&self) -> String {
        ["etcd.log", "kube-apiserver.log"]
            .map(|name| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default())
            .join("\n")
    }

    fn resume(&mut self) -> Result<()> {
        self.processes = Some(Processes::start(&self.netns, self.folder.path())?);
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(90);
        loop {
            let ready = self.kubectl(&["get", "--raw", "/readyz", "--request-timeout=5s"])?;
            // The namespace comes a moment after the server says that it is ready.
            if ready.status.success() && self.kubectl(&["get", "ns", "default"])?.status.success() {
                return Ok(());
            }
            let ended = self.processes.as_mut().is_none_or(Processes::ended);
            if ended || std::time::Instant::now() > deadline {
                let said = String::from_utf8_lossy(&ready.stderr).into_owned();
                let log = self.log();
                let tail: Vec<&str> = log.lines().rev().take(30).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!("the API server is not ready: {said}\n{}", tail.join("\n"));
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// The server's certificate is its own authority's: the file has both.
    fn write_kubeconfig(&self, token: &str) -> Result<()> {
        let authority = self.folder.path().join("certs/apiserver.crt");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: \"{URL}\", certificate-authority: {}}}}}]\n\
             users: [{{name: test, user: {{token: {token}}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n",
            authority.display()
        );
        Ok(std::fs::write(self.folder.path().join(format!("{token}.kubeconfig")), text)?)
    }
}

fn successful(words: &[&str], output: Output) -> Result<String> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("kubectl {}: {}: {}", words.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What `cargo xtask setup` keeps outside of the tree: `PODWIRE_CACHE`, else the user's cache folder.
fn cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = || std::env::home_dir().unwrap_or_default().join(".cache");
    variable("PODWIRE_CACHE")
        .unwrap_or_else(|| variable("XDG_CACHE_HOME").unwrap_or_else(home).join("podwire"))
}

/// A program below the cache folder.
fn cached(path: &str) -> Result<PathBuf> {
    let program = cache().join(path);
    if !program.is_file() {
        bail!("there is no {}; `cargo xtask setup kubernetes` puts it there", program.display());
    }
    Ok(program)
}

fn kubectl() -> Result<PathBuf> {
    let in_path = |folder: PathBuf| Some(folder.join("kubectl")).filter(|file| file.is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).find_map(in_path).map_or_else(|| cached("kubectl-1.37.1/kubectl"), Ok)
}

/// A command in a namespace whose output goes to a file below `folder`.
fn logged(netns: &NetNs, program: &Path, folder: &Path, log: &str) -> Result<Command> {
    let file = std::fs::File::options().create(true).append(true).open(folder.join(log))?;
    let mut command = netns.command(&program.to_string_lossy());
    command.current_dir(folder).stdout(file.try_clone()?).stderr(file);
    Ok(command)
}
