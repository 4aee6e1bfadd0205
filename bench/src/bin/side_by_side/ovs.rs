//! Open vSwitch's userspace datapath in a network namespace, run by hand out of a folder of its own. (The kernel
//! datapath is another matter: it is a module, and is not compared here.)

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use podwire_harness::{Background, COLLECTOR_V4, NODE_V4, NetNs, Pod, run_ok};

/// The bridge of the pods, and the one of the underlay, whose address tunnels leave by.
const PODS: &str = "br-pods";
const UNDERLAY: &str = "br-underlay";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const PATIENCE: Duration = Duration::from_secs(10);

/// A running switch.
#[derive(Debug)]
pub struct Switch {
    folder: PathBuf,
    name: String,
    _processes: Vec<Background>,
}

/// Where the switch sends copies of what a pod sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    None,
    /// To a port of the bridge.
    Local,
    Vxlan,
}

impl Switch {
    /// Starts it in a node's namespace; it forwards what comes in from one pod to the other.
    pub fn start(node: &NetNs, folder: &Path, from: &Pod, to: &Pod, tap: &str) -> Result<Self> {
        let switch = Self::without_ports(node, folder, false)?;
        switch.bridge(PODS)?;
        switch.bridge(UNDERLAY)?;
        for (bridge, port) in
            [(PODS, from.interface.as_str()), (PODS, &to.interface), (PODS, tap), (UNDERLAY, "uplink0")]
        {
            switch.set(&["add-port", bridge, port])?;
        }
        let remote = format!("options:remote_ip={COLLECTOR_V4}");
        switch.set(&[
            "add-port",
            PODS,
            "vx",
            "--",
            "set",
            "interface",
            "vx",
            "type=vxlan",
            &remote,
            "options:key=9",
        ])?;
        // The underlay's address moves to its bridge; the tunnel finds its way by the bridge's own routes.
        node.ip(&["addr", "del", &format!("{NODE_V4}/24"), "dev", "uplink0"])?;
        node.ip(&["addr", "add", &format!("{NODE_V4}/24"), "dev", UNDERLAY])?;
        node.ip(&["link", "set", UNDERLAY, "up"])?;
        let flow = format!("in_port={},actions=output:{}", from.interface, to.interface);
        switch.flows(&["del-flows", PODS])?;
        switch.flows(&["add-flow", PODS, &flow])?;
        Ok(switch)
    }

    /// Starts one that learns where pods are, as any bridge does. Super-packets stay whole.
    pub fn learning(node: &NetNs, folder: &Path, pods: &[Pod]) -> Result<Self> {
        let switch = Self::without_ports(node, folder, true)?;
        switch.bridge(PODS)?;
        pods.iter().try_for_each(|pod| switch.set(&["add-port", PODS, &pod.interface]))?;
        Ok(switch)
    }

    fn without_ports(node: &NetNs, folder: &Path, whole: bool) -> Result<Self> {
        let folder = folder.join("ovs");
        std::fs::create_dir_all(&folder)?;
        let at = |name: &str| folder.join(name).display().to_string();
        run_ok(&["ovsdb-tool", "create", &at("conf.db"), SCHEMA])?;
        let socket = at("db.sock");
        let mut switch =
            Self { folder: folder.clone(), name: node.name().to_owned(), _processes: Vec::new() };
        let remote = format!("--remote=punix:{socket}");
        switch.spawn(
            node,
            "ovsdb-server",
            &[&at("conf.db"), &remote, &format!("--unixctl={}", at("db.ctl"))],
        )?;
        wait_for(&folder.join("db.sock"))?;
        if whole {
            // Read once, when the switch starts.
            let option = "other_config:userspace-tso-enable=true";
            switch.set(&["--no-wait", "init"])?;
            switch.set(&["--no-wait", "set", "Open_vSwitch", ".", option])?;
        }
        let control = format!("--unixctl={}", at("vswitchd.ctl"));
        switch.spawn(node, "ovs-vswitchd", &[&format!("unix:{socket}"), &control])?;
        wait_for(&folder.join("vswitchd.ctl"))?;
        Ok(switch)
    }

    /// Says where copies of what a pod sends go.
    pub fn mirror(&self, from: &Pod, copies: Copies, tap: &str) -> Result<()> {
        self.set(&["clear", "bridge", PODS, "mirrors"])?;
        let port = match copies {
            Copies::None => None,
            Copies::Local => Some(tap),
            Copies::Vxlan => Some("vx"),
        };
        if let Some(port) = port {
            self.set(&[
                "--",
                "--id=@from",
                "get",
                "port",
                &from.interface,
                "--",
                "--id=@to",
                "get",
                "port",
                port,
                "--",
                "--id=@m",
                "create",
                "mirror",
                "name=copies",
                "select-src-port=@from",
                "output-port=@to",
                "--",
                "set",
                "bridge",
                PODS,
                "mirrors=@m",
            ])?;
        }
        // Flows that it remembers go on to the old port.
        let control = self.folder.join("vswitchd.ctl").display().to_string();
        self.inside(&["ovs-appctl", "-t", &control, "revalidator/purge"]).map(drop)
    }

    /// Lets it learn the collector's address, and not forget it.
    pub fn fix_neighbour(&self, mac: &str) -> Result<()> {
        let control = self.folder.join("vswitchd.ctl").display().to_string();
        self.inside(&["ovs-appctl", "-t", &control, "tnl/arp/set", UNDERLAY, COLLECTOR_V4, mac]).map(drop)
    }

    fn bridge(&self, name: &str) -> Result<()> {
        self.set(&[
            "add-br",
            name,
            "--",
            "set",
            "bridge",
            name,
            "datapath_type=netdev",
            "fail-mode=standalone",
        ])
    }

    fn set(&self, words: &[&str]) -> Result<()> {
        let database = format!("--db=unix:{}", self.folder.join("db.sock").display());
        self.inside(&[&["ovs-vsctl", "--timeout=10", &database], words].concat()).map(drop)
    }

    fn flows(&self, words: &[&str]) -> Result<()> {
        self.inside(&[&["ovs-ofctl"], words].concat()).map(drop)
    }

    /// Runs one of its tools, told where its files are.
    fn inside(&self, words: &[&str]) -> Result<String> {
        let entry = format!("--net=/run/netns/{}", self.name);
        let folder = self.folder.display().to_string();
        let places = places(&folder);
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        run_ok(&[&["nsenter", &entry, "env"], &places[..], words].concat())
    }

    fn spawn(&mut self, node: &NetNs, program: &str, words: &[&str]) -> Result<()> {
        let folder = self.folder.display().to_string();
        let log = std::fs::File::create(self.folder.join(format!("{program}.log")))?;
        let child = node
            .command("env")
            .args(places(&folder))
            .arg(program)
            .args(words)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        self._processes.push(Background::new(child));
        Ok(())
    }
}

fn places(folder: &str) -> [String; 3] {
    ["OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR"].map(|name| format!("{name}={folder}"))
}

fn wait_for(path: &Path) -> Result<()> {
    let started = Instant::now();
    while !path.exists() {
        if started.elapsed() > PATIENCE {
            bail!("{} did not appear", path.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
