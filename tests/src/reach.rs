//! Who reaches whom in a cluster, whoever forwards. In: a cluster. Out: nothing, or what does not work.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Capture, Cluster, ClusterNode, Hop, Iperf, Page, Pod, RunningStream, SERVER_V4, SERVER_V6, UdpStream,
};

/// Two different pods of a cluster.
pub type Pair<'a> = (&'a Pod, &'a Pod);

/// All ordered pairs of pods.
pub fn pairs(cluster: &Cluster) -> Vec<Pair<'_>> {
    let all: Vec<&Pod> = cluster.pods().collect();
    all.iter()
        .flat_map(|from| all.iter().map(move |to| (*from, *to)))
        .filter(|(from, to)| from.name != to.name)
        .collect()
}

/// The first pod with its neighbour on the same node, and with the first pod of the second node.
///
/// # Errors
/// When the cluster is too small.
pub fn near_and_far(cluster: &Cluster) -> Result<[Pair<'_>; 2]> {
    let pod = |node: usize, pod: usize| -> Result<&Pod> {
        cluster.nodes.get(node).and_then(|node| node.pods.get(pod)).context("two nodes with two pods")
    };
    Ok([(pod(0, 0)?, pod(0, 1)?), (pod(0, 0)?, pod(1, 0)?)])
}

/// A pod's addresses.
pub fn addresses(pod: &Pod) -> [&str; 2] {
    [&pod.v4, &pod.v6]
}

/// Each pod has answers from each other one, IPv4 and IPv6, from the first request on.
///
/// # Errors
/// Naming the pods.
pub fn full_mesh(cluster: &Cluster) -> Result<()> {
    for (from, to) in pairs(cluster) {
        for address in addresses(to) {
            let received = from.netns.ping(address, 3, 56)?;
            ensure!(received == 3, "{} to {} ({address}): {received} of 3 answers", from.name, to.name);
        }
    }
    Ok(())
}

/// Pages over TCP arrive to the byte, near and far, both families; so do datagrams, and iperf3 loses none.
///
/// # Errors
/// Naming the pods.
pub fn streams(cluster: &Cluster) -> Result<()> {
    for (from, to) in near_and_far(cluster)? {
        for address in addresses(to) {
            let what = || format!("{} to {} ({address})", from.name, to.name);
            let page = Page { address: address.to_owned(), port: 8080, bytes: 3_000_000 };
            page.fetch(&from.netns, &to.netns).with_context(what)?;
            let report = datagrams((from, to), address, 1000, 1000)?.finish()?;
            ensure!(report.is_whole(), "{}: {report:?}", what());
            let rate = Some(20_000_000);
            let transfer = Iperf {
                destination: address.to_owned(),
                port: 5201,
                bytes: 1_000_000,
                udp_rate: rate,
                cpus: None,
            };
            let report = transfer.run(&from.netns, &to.netns).with_context(what)?;
            ensure!(report.lost_packets == 0, "{}: {report:?}", what());
        }
    }
    Ok(())
}

/// `count` datagrams of `size` bytes between two pods, a thousand a second.
///
/// # Errors
/// When a socket fails.
pub fn datagrams((from, to): Pair<'_>, address: &str, count: u64, size: usize) -> Result<RunningStream> {
    let gap = Duration::from_millis(1);
    // A port for each, so that several streams can run to one pod.
    static STREAMS: AtomicU16 = AtomicU16::new(0);
    let port = 7000 + STREAMS.fetch_add(1, Ordering::Relaxed) % 1000;
    UdpStream { destination: address.to_owned(), port, count, size, gap }.start(&from.netns, &to.netns)
}

/// Streams over both families, near and far, of `count` datagrams; to be finished with [`all_whole`].
///
/// # Errors
/// When a socket fails.
pub fn load(cluster: &Cluster, count: u64) -> Result<Vec<RunningStream>> {
    let pairs = near_and_far(cluster)?;
    let ways = pairs.iter().flat_map(|pair| addresses(pair.1).map(|address| (*pair, address)));
    ways.map(|(pair, address)| datagrams(pair, address, count, 200)).collect()
}

/// Waits for streams, of which nothing may be missing.
///
/// # Errors
/// With what is missing.
pub fn all_whole(streams: Vec<RunningStream>) -> Result<()> {
    for stream in streams {
        let report = stream.finish()?;
        ensure!(report.is_whole(), "{report:?}");
    }
    Ok(())
}

/// Echo requests that the sender has to send in fragments are answered, in fragments.
///
/// # Errors
/// Naming the pods.
pub fn large_packets(cluster: &Cluster) -> Result<()> {
    for (from, to) in near_and_far(cluster)? {
        for address in addresses(to) {
            for size in [3000, 8000] {
                let received = from.netns.ping(address, 5, size)?;
                ensure!(received == 5, "{} to {address}, {size} bytes: {received} of 5", from.name);
            }
            let report = datagrams((from, to), address, 300, 5000)?.finish()?;
            ensure!(report.is_whole(), "{} to {address}: {report:?}", from.name);
        }
    }
    Ok(())
}

/// Each router on the way, and no other host, takes one from the hop limit and says so when it was the last. `hops`:
/// how many there are.
///
/// # Errors
/// Naming the pods and the step.
pub fn trace((from, to): Pair<'_>, address: &str, hops: u8) -> Result<()> {
    for limit in 1..=hops {
        let hop = Hop::ask(&from.netns, address, limit, 56)?;
        let Hop::Exceeded(router) = hop else {
            anyhow::bail!("{} to {address}, hop limit {limit}: {hop:?}", from.name)
        };
        let ends = [addresses(from), addresses(to)].concat();
        ensure!(!ends.contains(&router.to_string().as_str()), "{router} says that the hop limit ended");
    }
    let hop = Hop::ask(&from.netns, address, hops + 1, 56)?;
    ensure!(hop == Hop::Reply, "{} to {address}, hop limit {}: {hop:?}", from.name, hops + 1);
    Ok(())
}

/// What reaches a pod has its MAC address, its gateway's as a source, and a hop limit less by `hops`.
///
/// # Errors
/// Naming the pods and what they got.
pub fn frames(cluster: &Cluster, (from, to): Pair<'_>, hops: u8) -> Result<()> {
    let node = node_of(cluster, to)?;
    let capture = Capture::start(&to.netns, "eth0", node.scratch.path(), "icmp or icmp6", 0)?;
    for address in addresses(to) {
        ensure!(from.netns.ping(address, 2, 56)? == 2, "{} to {address}", from.name);
    }
    let file = capture.stop();
    let limit = (64 - hops).to_string();
    for (family, v6, ttl) in [("icmp.type==8", false, "ip.ttl"), ("icmpv6.type==128", true, "ipv6.hlim")] {
        let gateway = neighbour(to, &node.gateway(to, v6)?)?;
        let rows = Capture::fields(&file, 0, family, &["eth.src", "eth.dst", ttl])?;
        let wanted = [gateway.as_str(), &to.mac, &limit];
        ensure!(rows.len() == 2 && rows.iter().all(|row| row == &wanted), "{rows:?}, not {wanted:?}");
    }
    Ok(())
}

/// The MAC address that a pod has found for an address.
///
/// # Errors
/// When it has none.
pub fn neighbour(pod: &Pod, address: &str) -> Result<String> {
    let entry = pod.netns.ip(&["neigh", "show", address, "dev", "eth0"])?;
    let mac = entry.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
    Ok(mac.with_context(|| format!("{} has no neighbour {address}: {entry:?}", pod.name))?.to_owned())
}

/// The node of a pod.
///
/// # Errors
/// When it is gone.
pub fn node_of<'a>(cluster: &'a Cluster, pod: &Pod) -> Result<&'a ClusterNode> {
    let has = |node: &&ClusterNode| node.pods.iter().any(|other| other.name == pod.name);
    cluster.nodes.iter().find(has).with_context(|| format!("{} is nowhere", pod.name))
}

/// Nodes reach the pods of all nodes, and pods the addresses of all nodes.
///
/// # Errors
/// Naming the node and the pod.
pub fn nodes_and_pods(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        for pod in cluster.pods() {
            for (address, own) in addresses(pod).into_iter().zip(node.addresses()) {
                if !cluster.speaks(&own) {
                    continue;
                }
                let received = node.netns.ping(address, 2, 56)?;
                ensure!(received == 2, "{} to {} ({address}): {received} of 2", node.name, pod.name);
                let received = pod.netns.ping(&own, 2, 56)?;
                ensure!(received == 2, "{} to {} ({own}): {received} of 2", pod.name, node.name);
            }
        }
    }
    Ok(())
}

/// Pods reach the server, over TCP as well.
///
/// # Errors
/// Naming the pod.
pub fn world(cluster: &Cluster) -> Result<()> {
    for pod in cluster.pods() {
        for address in [SERVER_V4, SERVER_V6].into_iter().filter(|address| cluster.speaks(address)) {
            let received = pod.netns.ping(address, 3, 56)?;
            ensure!(received == 3, "{} to the server ({address}): {received} of 3", pod.name);
            let page = Page { address: address.to_owned(), port: 8080, bytes: 500_000 };
            page.fetch(&pod.netns, &cluster.server)
                .with_context(|| format!("{} from {address}", pod.name))?;
        }
    }
    Ok(())
}

/// A pod whose packets are longer than the way to another one allows is told so, by the right MTU; TCP works.
///
/// # Errors
/// Naming the address.
pub fn path_mtu((from, to): Pair<'_>, mtu: u32) -> Result<()> {
    for (address, headers) in [(&to.v4, 28), (&to.v6, 48)] {
        // Asked before the sender's kernel knows; afterwards that refuses by itself, with the same MTU.
        for _ in 0..2 {
            let hop = Hop::ask(&from.netns, address, 64, mtu - headers + 1)?;
            ensure!(hop == Hop::TooBig(mtu), "{} to {address}, one byte too long: {hop:?}", from.name);
        }
        let hop = Hop::ask(&from.netns, address, 64, mtu - headers)?;
        ensure!(hop == Hop::Reply, "{} to {address}, just fitting: {hop:?}", from.name);
        for (client, server, address) in
            [(from, to, address), (to, from, if headers == 28 { &from.v4 } else { &from.v6 })]
        {
            let page = Page { address: address.clone(), port: 8080, bytes: 2_000_000 };
            page.fetch(&client.netns, &server.netns)
                .with_context(|| format!("{} from {address}", client.name))?;
        }
    }
    Ok(())
}
