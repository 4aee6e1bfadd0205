//! Suricata inline: it passes, it blocks, and what happens when it dies. No offload is switched, no MTU set by hand
//! for it where podwire is.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the test runner reads why a test did nothing")]

use anyhow::Result;
use podwire_harness::{Iperf, NetNs, Suricata, SuricataReport, WebServer};

/// The rule that names what is allowed, and the one that names what is not.
const ALLOWED: u64 = 1001;
const FORBIDDEN: u64 = 1002;
const RULES: &str = "\
alert http any any -> any any (msg:\"allowed\"; http.uri; content:\"/allowed\"; sid:1001; rev:1;)
drop http any any -> any any (msg:\"forbidden\"; http.uri; content:\"/forbidden\"; sid:1002; rev:1;)
";
/// Bits per second that a connection through Suricata must reach at least.
const USABLE: f64 = 50e6;

/// Says why a test does nothing, when it can do nothing.
fn skipped() -> bool {
    let skipped = !Suricata::is_installed();
    if skipped {
        println!("SKIPPED: suricata is not installed");
    }
    skipped
}

/// A client, a server, and Suricata's namespace between them.
struct Bump {
    client: NetNs,
    middle: NetNs,
    server: NetNs,
}

impl Bump {
    fn new() -> Result<Self> {
        let scene = Self {
            client: NetNs::new("client")?,
            middle: NetNs::new("middle")?,
            server: NetNs::new("server")?,
        };
        for (netns, port, number) in [(&scene.client, "ips-a", 1), (&scene.server, "ips-b", 2)] {
            scene.middle.ip(&[
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                netns.name(),
            ])?;
            scene.middle.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{port}.disable_ipv6=1")])?;
            scene.middle.ip(&["link", "set", port, "up"])?;
            netns.ip(&["addr", "add", &format!("10.0.0.{number}/24"), "dev", "eth0"])?;
            netns.ip(&["addr", "add", &format!("fd00::{number}/64"), "dev", "eth0", "nodad"])?;
            netns.ip(&["link", "set", "eth0", "up"])?;
        }
        Ok(scene)
    }
}

/// Ten pages per family that are allowed and one that is not, in that order, and what the client was told.
fn browse(client: &NetNs, server: &NetNs, addresses: [&str; 2]) -> Result<()> {
    for address in addresses {
        let web = WebServer::start(server, address)?;
        for _ in 0..10 {
            assert_eq!(web.get(client, "/allowed")?, Some(200), "{address}");
        }
        assert_eq!(web.get(client, "/forbidden")?, None, "{address}");
    }
    Ok(())
}

/// A bulk transfer that must go at a usable rate.
fn hurry(client: &NetNs, server: &NetNs, address: &str) -> Result<()> {
    let bulk = Iperf { destination: address.into(), port: 5201, bytes: 256 << 20, udp_rate: None };
    let bulk = bulk.run(client, server)?;
    println!("{address}: {:.0} Mbit/s, {} segments sent again", bulk.bits_per_second / 1e6, bulk.retransmits);
    assert!(bulk.bits_per_second > USABLE, "{bulk:?}");
    Ok(())
}

/// Each allowed page passed and each other was blocked, and the packets were as on a wire.
fn did_its_work(report: &SuricataReport) -> Result<()> {
    assert_eq!(report.flaws()?, []);
    assert_eq!((report.count(ALLOWED), report.count(FORBIDDEN)), (20, 2), "{:?}", report.alerts());
    assert!(report.alerts().iter().all(|alert| alert.blocked == (alert.sid == FORBIDDEN)));
    assert!(report.counter("ips.blocked")? >= 2);
    Ok(())
}

/// Suricata without podwire, between two veth pairs: nothing passes while their offloads are on, because it sends on
/// what it reads and an unfinished checksum stays so. What works once they are off is what podwire must reach alone.
#[test]
fn root_suricata_between_plain_veth_pairs_needs_their_offloads_off() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let scene = Bump::new()?;
    let suricata = Suricata::ips(&scene.middle, ["ips-a", "ips-b"], RULES)?;
    for address in ["10.0.0.2", "fd00::2"] {
        let web = WebServer::start(&scene.server, address)?;
        assert_eq!(web.get(&scene.client, "/allowed")?, None, "{address}");
    }
    suricata.kill();
    for netns in [&scene.client, &scene.server] {
        for name in ["tx", "tso", "gso"] {
            netns.offload("eth0", name, false)?;
        }
    }
    let suricata = Suricata::ips(&scene.middle, ["ips-a", "ips-b"], RULES)?;
    browse(&scene.client, &scene.server, ["10.0.0.2", "fd00::2"])?;
    hurry(&scene.client, &scene.server, "10.0.0.2")?;
    did_its_work(&suricata.stop()?)
}
