//! Many pods at little cost. In: a node. Out: cables from it to one namespace that stands for all of them, each cable
//! with a MAC address and addresses of its own.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use podwire_harness::{Cluster, ClusterNode, NetNs, Pod};

/// Members of a crowd, by number.
#[derive(Debug)]
pub struct Crowd {
    netns: NetNs,
    folder: PathBuf,
    config: PathBuf,
    node: String,
    connected: BTreeSet<usize>,
}

/// Where datagrams to the members go.
const PORT: u16 = 9999;
const RECEIVE_BUFFER: usize = 16 << 20;

fn v4(member: usize) -> String {
    format!("10.11.{}.{}", member / 200, member % 200 + 1)
}

fn v6(member: usize) -> String {
    format!("fd00:11::{:x}", member + 1)
}

fn mac(member: usize) -> String {
    format!("02:00:00:11:{:02x}:{:02x}", member / 256, member % 256)
}

impl Crowd {
    /// A crowd on the first node, without members yet.
    ///
    /// # Errors
    /// Without root.
    pub fn new(cluster: &Cluster) -> Result<Self> {
        let node: &ClusterNode = cluster.nodes.first().context("no node")?;
        let netns = NetNs::new("crowd")?;
        for scope in ["all", "default"] {
            netns.run_ok(&["sysctl", "-qw", &format!("net.ipv4.conf.{scope}.rp_filter=0")])?;
        }
        let (folder, config) = (node.scratch.path().to_owned(), node.config());
        Ok(Self { netns, folder, config, node: node.netns.name().to_owned(), connected: BTreeSet::new() })
    }

    /// Lays and cuts cables until these members are connected.
    ///
    /// # Errors
    /// When iproute2 refuses.
    pub fn connect(&mut self, members: &BTreeSet<usize>) -> Result<()> {
        let (mut outside, mut inside) = (String::new(), String::new());
        for member in self.connected.difference(members) {
            writeln!(outside, "link del c{member}")?;
        }
        for member in members.difference(&self.connected) {
            let (mac, netns) = (mac(*member), self.netns.name());
            writeln!(
                outside,
                "link add c{member} mtu 1430 type veth peer name i{member} mtu 1430 address {mac} netns {netns}"
            )?;
            writeln!(outside, "link set c{member} up")?;
            writeln!(inside, "addr add {}/32 dev i{member}", v4(*member))?;
            writeln!(inside, "addr add {}/128 dev i{member} nodad", v6(*member))?;
            writeln!(inside, "link set i{member} up")?;
        }
        for (netns, text) in [(self.node.as_str(), outside), (self.netns.name(), inside)] {
            let file = self.folder.join("crowd.batch");
            std::fs::write(&file, text)?;
            podwire_harness::run_ok(&["ip", "-n", netns, "-batch", &file.to_string_lossy()])?;
        }
        self.connected.clone_from(members);
        Ok(())
    }

    /// Writes the Endpoint objects of these members, connected or not.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, members: &BTreeSet<usize>) -> Result<()> {
        let mut text = String::new();
        for member in members {
            writeln!(
                text,
                "---\napiVersion: podwire.io/v1alpha1\nkind: Endpoint\n\
                 metadata: {{namespace: crowd, name: c{member}, labels: {{app: crowd}}}}\n\
                 spec: {{interface: c{member}, mac: \"{}\", ips: [{}, \"{}\"]}}",
                mac(*member),
                v4(*member),
                v6(*member)
            )?;
        }
        let draft = self.config.join(".crowd.yaml.new");
        std::fs::write(&draft, text)?;
        Ok(std::fs::rename(draft, self.config.join("crowd.yaml"))?)
    }

    /// Which members a pod of the same node reaches, by both families.
    ///
    /// # Errors
    /// When a socket fails.
    pub fn reached_by(&self, pod: &Pod, members: &BTreeSet<usize>) -> Result<BTreeSet<usize>> {
        let receiver = self.netns.enter(|| Ok(UdpSocket::bind(("::", PORT))?))?;
        // Room for all at once.
        setsockopt(&receiver, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
        receiver.set_read_timeout(Some(Duration::from_millis(500)))?;
        let all = members.clone();
        pod.netns.enter(move || {
            for member in all {
                let text = member.to_string();
                UdpSocket::bind("0.0.0.0:0")?.send_to(text.as_bytes(), (v4(member).as_str(), PORT))?;
                UdpSocket::bind("[::]:0")?.send_to(text.as_bytes(), (v6(member).as_str(), PORT))?;
            }
            Ok(())
        })?;
        let (mut by_v4, mut by_v6, mut buffer) = (BTreeSet::new(), BTreeSet::new(), [0; 16]);
        while let Ok((len, from)) = receiver.recv_from(&mut buffer) {
            let member = String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()).parse()?;
            let _ =
                if from.ip().to_canonical().is_ipv4() { by_v4.insert(member) } else { by_v6.insert(member) };
        }
        Ok(by_v4.intersection(&by_v6).copied().collect())
    }
}
