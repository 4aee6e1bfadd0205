//! Where captures are tried: pods on a node whose agent has nothing else to do; and traffic.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use podwire_harness::{Agent, NetNs, Pod, Scratch, Topology, TopologyOptions, UdpStream, eventually};

use super::Capturing;
use crate::agents;

/// A node with pods and an agent that knows them and has nothing to do.
#[derive(Debug)]
pub struct Scene {
    agent: Option<Agent>,
    /// Pods and their node.
    pub topology: Topology,
    /// Its files.
    pub scratch: Scratch,
}

fn endpoint(number: usize) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: Endpoint\nmetadata: {{name: web-{number}, labels: {{app: web}}}}\n\
         spec: {{interface: veth-web-{number}, ips: [10.10.1.{}, \"fd00:10:1::{0}\"]}}\n",
        number + 5
    )
}

fn write_pods(scratch: &Scratch, count: usize) -> Result<()> {
    let config = scratch.path().join("config");
    std::fs::create_dir_all(&config)?;
    let draft = config.join(".pods.yaml.new");
    std::fs::write(&draft, (0..count).map(endpoint).collect::<String>())?;
    Ok(std::fs::rename(draft, config.join("pods.yaml"))?)
}

impl Scene {
    /// With an agent that knows the pods.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn new(options: TopologyOptions) -> Result<Self> {
        let (topology, scratch) = (Topology::with(options)?, Scratch::new()?);
        topology.warm_up()?;
        write_pods(&scratch, options.pods)?;
        let agent = Agent::start(&topology.node, scratch.path(), &[])?;
        let scene = Self { agent: Some(agent), topology, scratch };
        eventually("pods are known", || Ok(scene.endpoints()?.len() == options.pods))?;
        Ok(scene)
    }

    /// Writes the objects of the first pods, whether they are there or not.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_pods(&self, count: usize) -> Result<()> {
        write_pods(&self.scratch, count)
    }

    /// Where the agent reads objects from.
    pub fn config(&self) -> PathBuf {
        self.scratch.path().join("config")
    }

    /// The agent.
    ///
    /// # Errors
    /// When none runs.
    pub fn agent(&self) -> Result<&Agent> {
        self.agent.as_ref().context("no agent runs")
    }

    /// SIGKILL to the agent.
    ///
    /// # Errors
    /// When none runs.
    pub fn kill_agent(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.kill();
        Ok(())
    }

    /// SIGINT to the agent.
    ///
    /// # Errors
    /// When none runs.
    pub fn stop_agent(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.stop();
        Ok(())
    }

    /// Starts the agent again.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_agent(&mut self) -> Result<()> {
        self.agent = Some(Agent::start(&self.topology.node, self.scratch.path(), &[])?);
        Ok(())
    }

    /// What the agent says of its pods.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn endpoints(&self) -> Result<Vec<serde_json::Value>> {
        Ok(agents::get(self.agent()?, &["endpoints"])?["items"].as_array().cloned().unwrap_or_default())
    }

    /// A file of the test's.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Starts to capture to `capture.pcapng`.
    ///
    /// # Errors
    /// When it does not begin.
    pub fn capture(&self, words: &[&str]) -> Result<Capturing> {
        Capturing::start(&[self.agent()?.socket()], &self.file("capture.pcapng"), words)
    }

    /// The first two.
    pub fn pods(&self) -> (&Pod, &Pod) {
        (&self.topology.pods[0], &self.topology.pods[1])
    }

    /// Whether there are programs at any pod, as the kernel says.
    ///
    /// # Errors
    /// Without bpftool.
    pub fn kernel_has_programs(&self) -> Result<bool> {
        Ok(self.topology.node.run_ok(&["bpftool", "net", "show"])?.contains("veth-web"))
    }

    /// No program, no session, no capture.
    ///
    /// # Errors
    /// When there is one for longer than ten seconds.
    pub fn nothing_is_left(&self) -> Result<()> {
        nothing_is_left(self.agent()?)?;
        ensure!(!self.kernel_has_programs()?, "the kernel has programs at the pods");
        Ok(())
    }
}

/// An agent with nothing else to do has no program, no session, no capture.
///
/// # Errors
/// When there is one for longer than ten seconds.
pub fn nothing_is_left(agent: &Agent) -> Result<()> {
    let mut last = String::new();
    eventually("nothing is left", || {
        let mut left = Vec::new();
        for kind in ["captures", "sessions", "tc"] {
            left.extend(agents::get(agent, &[kind])?["items"].as_array().cloned().unwrap_or_default());
        }
        let pods = agents::get(agent, &["endpoints"])?["items"].as_array().cloned().unwrap_or_default();
        // A guarded pod has programs anyhow.
        let strange = |pod: &serde_json::Value| {
            pod["status"]["state"] != "Idle" && pod["status"]["guard"]["mode"] == "Off"
        };
        left.extend(pods.into_iter().filter(strange));
        last = serde_json::Value::from(left).to_string();
        Ok(last == "[]")
    })
    .with_context(|| last)
}

/// One connection: `bytes` one way and a word back.
///
/// # Errors
/// When they do not arrive.
pub fn transfer(from: &NetNs, to: &NetNs, address: &str, port: u16, bytes: usize) -> Result<()> {
    let any = if address.contains(':') { format!("[::]:{port}") } else { format!("0.0.0.0:{port}") };
    let listener = to.enter(move || Ok(std::net::TcpListener::bind(any)?))?;
    let reader = std::thread::spawn(move || -> Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let read = std::io::copy(&mut stream, &mut std::io::sink())?;
        stream.write_all(b"thank you")?;
        Ok(read)
    });
    let target =
        if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
    from.enter(move || {
        let mut stream = std::net::TcpStream::connect(target)?;
        stream.write_all(&vec![0x5a; bytes])?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer == "thank you");
        Ok(())
    })?;
    ensure!(reader.join().map_err(|_| anyhow!("the reader panicked"))?? == bytes as u64);
    Ok(())
}

/// A stream that takes a while.
pub fn datagrams(destination: &str, port: u16, count: u64) -> UdpStream {
    UdpStream { destination: destination.into(), port, count, size: 200, gap: Duration::from_micros(200) }
}
