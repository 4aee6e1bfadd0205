//! AF_XDP under the collector: what is taken from the stack and what is not, whatever the workers do.
#![cfg(feature = "test-run")]

use std::collections::HashSet;
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_datapath::collect::Wanted;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::xsk::{Attached, Copying, Front, Options, Place, Pool, Workers};
use podwire_datapath::{ErrorKind, Hook};
use podwire_harness::{COLLECTOR_V4, NetNs, Scratch, Topology, TopologyOptions, UdpStream, eventually};
use podwire_tests::node::Node;
use podwire_tests::wish::{mirror, mirrors, tunnel};

/// VXLAN around `payload` behind an Ethernet header: what follows the UDP header.
fn vxlan(vni: u32, payload: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = vni.to_be_bytes();
    let mut bytes = vec![0x08, 0, 0, 0, high, middle, low, 0];
    bytes.extend([2; 12]);
    bytes.extend([0x88, 0xb6]);
    bytes.extend_from_slice(payload);
    bytes
}

/// Sends datagrams from the node to a port of the collector.
fn send(scene: &Topology, port: u16, datagrams: Vec<Vec<u8>>) -> Result<()> {
    scene.node.enter(move || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        for datagram in datagrams {
            // What nobody wants is answered; that is not what is asked here.
            let _ = socket.send_to(&datagram, (COLLECTOR_V4, port));
        }
        Ok(())
    })
}

/// A socket of the collector's stack.
fn listen(netns: &NetNs, port: u16) -> Result<UdpSocket> {
    let socket = netns.enter(move || Ok(UdpSocket::bind(("0.0.0.0", port))?))?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

/// How many datagrams the stack has.
fn heard(socket: &UdpSocket) -> usize {
    let mut buffer = vec![0; 65536];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count()
}

/// A worker of one thread that also sends is away for a while.
fn patient() -> Options {
    Options { patience: Duration::from_secs(2), ..Options::default() }
}

fn front(scene: &Topology, wanted: Wanted, options: Options) -> Result<Front> {
    scene.collector.enter(move || Ok(Front::collect("eth0", &wanted, &options)?))
}

/// Takes what comes in the next while.
fn taken(front: &mut Front, most: usize) -> Result<Vec<Vec<u8>>> {
    let (mut all, until) = (Vec::new(), Instant::now() + Duration::from_secs(3));
    let mut quiet = 0;
    while all.len() < most && Instant::now() < until && quiet < 40 {
        let before = all.len();
        for receiver in &mut front.receivers {
            let mut batch = receiver.receive(Duration::from_millis(5))?;
            while let Some(packet) = batch.next() {
                all.push(packet.bytes().into_owned());
            }
        }
        quiet = if all.len() == before { quiet + 1 } else { 0 };
    }
    Ok(all)
}

fn only_vxlan(vnis: &[u32]) -> Wanted {
    let none = Wanted { geneve_ports: Vec::new(), gre: false, erspan: false, ..Wanted::default() };
    Wanted { vnis: vnis.to_vec(), ..none }
}

fn numbered(vni: u32, count: u32, size: usize) -> Vec<Vec<u8>> {
    let body = |number: u32| {
        let mut payload = vec![number as u8; size];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        vxlan(vni, &payload)
    };
    (0..count).map(body).collect()
}

#[test]
fn root_only_what_is_wanted_is_taken_from_the_stack() -> Result<()> {
    let scene = Topology::new()?;
    scene.warm_up()?;
    let sockets = [4789, 4790].map(|port| listen(&scene.collector, port));
    let [tunnels, others] = sockets.map(|socket| socket.context("a socket"));
    let (tunnels, others) = (tunnels?, others?);
    let mut front = front(&scene, only_vxlan(&[7]), patient())?;
    ensure!(front.attached() == Attached::Native, "veth has XDP");
    send(&scene, 4789, numbered(7, 50, 100))?;
    send(&scene, 4789, numbered(8, 30, 100))?;
    send(&scene, 4790, numbered(7, 20, 100))?;
    let frames = taken(&mut front, 50)?;
    let different: HashSet<&[u8]> = frames.iter().filter_map(|frame| frame.get(64..68)).collect();
    ensure!((frames.len(), different.len()) == (50, 50), "{} frames, {different:?}", frames.len());
    ensure!((heard(&tunnels), heard(&others)) == (30, 20), "the stack has the rest");
    ensure!(scene.node.ping(COLLECTOR_V4, 5, 56)? == 5, "and all else");
    let tally = front.receivers[0].tally();
    ensure!(tally.handed == 50 && tally.taken == 50, "{tally:?}");
    ensure!(front.receivers[0].ledger().balances());
    drop(front);
    ensure!(!scene.collector.ip(&["link", "show", "eth0"])?.contains("xdp"), "nothing is left");
    Ok(())
}

/// Fragments of what is wanted come with their first; all others are the stack's.
#[test]
fn root_fragments_follow_their_first() -> Result<()> {
    let scene = Topology::new()?;
    scene.warm_up()?;
    let others = listen(&scene.collector, 4790)?;
    let mut front = front(&scene, only_vxlan(&[7]), patient())?;
    send(&scene, 4789, numbered(7, 10, 4000))?;
    send(&scene, 4790, numbered(7, 10, 4000))?;
    let frames = taken(&mut front, 30)?;
    ensure!(frames.len() == 30, "three fragments of each: {}", frames.len());
    ensure!(heard(&others) == 10, "others are whole");
    ensure!(scene.node.ping(COLLECTOR_V4, 3, 3000)? == 3);
    let tally = front.receivers[0].tally();
    // Three of each of the ten others, less their firsts; and those of the answers' requests.
    ensure!(tally.orphans >= 20, "{tally:?}");
    Ok(())
}

/// A worker that does not come again: the stack has its packets, at once when there are no buffers, else after
/// the worker's time.
#[test]
fn root_a_worker_that_stays_away_leaves_packets_to_the_stack() -> Result<()> {
    let scene = Topology::new()?;
    scene.warm_up()?;
    let tunnels = listen(&scene.collector, 4789)?;
    let options = Options { buffers: 64, ..Options::default() };
    let mut front = front(&scene, only_vxlan(&[]), options)?;
    ensure!(taken(&mut front, 1)?.is_empty());
    // It is alive, and gets as many as it has buffers.
    let begin = Instant::now();
    send(&scene, 4789, numbered(7, 100, 100))?;
    let tally = front.receivers[0].tally();
    ensure!(begin.elapsed() < Duration::from_millis(40), "a busy machine");
    ensure!((tally.handed, tally.behind, tally.dead) == (64, 36, 0), "{tally:?}");
    std::thread::sleep(Duration::from_millis(60));
    send(&scene, 4789, numbered(7, 100, 100))?;
    let tally = front.receivers[0].tally();
    ensure!((tally.handed, tally.behind, tally.dead) == (64, 36, 100), "{tally:?}");
    ensure!(heard(&tunnels) == 136, "the stack has what the worker has not");
    // And it comes back.
    ensure!(taken(&mut front, 65)?.len() == 64);
    send(&scene, 4789, numbered(7, 10, 100))?;
    ensure!(taken(&mut front, 10)?.len() == 10);
    ensure!(front.receivers[0].ledger().balances());
    Ok(())
}

/// Packets on other threads are the buffers themselves; they come back when the last reader is gone.
#[test]
fn root_packets_are_lent_without_a_copy() -> Result<()> {
    let scene = Topology::new()?;
    scene.warm_up()?;
    let mut front = front(&scene, only_vxlan(&[]), Options { buffers: 256, ..patient() })?;
    let (give, take) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let packets: Vec<bytes::Bytes> = take.iter().take(100).collect();
        packets
    });
    send(&scene, 4789, numbered(7, 100, 300))?;
    let (mut lent, until) = (0, Instant::now() + Duration::from_secs(2));
    while lent < 100 && Instant::now() < until {
        let batch = front.receivers[0].receive(Duration::from_millis(5))?;
        lent += batch.lend(|packet| {
            let _ = give.send(packet.into_bytes());
        });
    }
    let packets = reader.join().ok().context("the reader")?;
    for (number, packet) in (0u32..).zip(&packets) {
        ensure!(
            packet[64..68] == number.to_be_bytes() && packet[68..].iter().all(|byte| *byte == number as u8)
        );
    }
    ensure!(front.receivers[0].ledger().count(Place::User) == 100);
    drop(packets);
    ensure!(taken(&mut front, 1)?.is_empty());
    let ledger = front.receivers[0].ledger();
    ensure!(ledger.count(Place::User) == 0 && ledger.balances(), "{ledger:?}");
    Ok(())
}

#[test]
fn root_long_frames_take_several_buffers() -> Result<()> {
    let options = TopologyOptions { underlay_mtu: 9000, ..TopologyOptions::default() };
    let scene = Topology::with(options)?;
    scene.warm_up()?;
    let mut front = front(&scene, only_vxlan(&[]), patient())?;
    let binding = front.receivers[0].binding();
    ensure!(binding.several_buffers && !binding.zero_copy, "{binding:?}");
    for round in 0..20 {
        send(&scene, 4789, numbered(7, 200, 8800))?;
        let frames = taken(&mut front, 200)?;
        ensure!(
            frames.len() == 200,
            "round {round}: {} frames: {:?}",
            frames.len(),
            front.receivers[0].tally()
        );
        let whole =
            |frame: &Vec<u8>| frame.len() == 64 + 8800 && frame[68..].iter().all(|byte| *byte == frame[67]);
        ensure!(frames.iter().all(whole));
    }
    ensure!(front.receivers[0].ledger().balances());
    Ok(())
}

#[test]
fn root_what_cannot_be_is_refused_by_name() -> Result<()> {
    let scene = Topology::new()?;
    let refused = |interface: &'static str, options: Options| -> Result<(ErrorKind, String)> {
        scene.collector.enter(move || match Front::collect(interface, &Wanted::default(), &options) {
            Ok(_) => anyhow::bail!("it was opened"),
            Err(error) => Ok((error.kind(), error.to_string())),
        })
    };
    let zero = refused("eth0", Options { copying: Copying::Zero, ..Options::default() })?;
    ensure!(zero.0 == ErrorKind::Unsupported && zero.1.contains("no zero-copy AF_XDP"), "{zero:?}");
    let nowhere = refused("nowhere0", Options::default())?;
    ensure!(nowhere.1.contains("interface nowhere0"), "{nowhere:?}");
    let odd = refused("eth0", Options { buffers: 100, ..Options::default() })?;
    ensure!(odd.0 == ErrorKind::Invalid && odd.1.contains("no power of two"), "{odd:?}");
    let first = front(&scene, Wanted::default(), Options::default())?;
    let second = refused("eth0", Options::default())?;
    ensure!(second.0 == ErrorKind::Busy, "{second:?}");
    drop(first);
    drop(front(&scene, Wanted::default(), Options::default())?);
    Ok(())
}

/// A device whose driver has no XDP: frames come by the stack's own hook.
#[test]
fn root_other_drivers_are_served_by_the_stack() -> Result<()> {
    let scene = Topology::new()?;
    scene.collector.ip(&["link", "add", "bridge0", "type", "bridge"])?;
    scene.collector.ip(&["addr", "flush", "dev", "eth0"])?;
    scene.collector.ip(&["link", "set", "eth0", "master", "bridge0"])?;
    scene.collector.ip(&["addr", "add", &format!("{COLLECTOR_V4}/24"), "dev", "bridge0"])?;
    scene.collector.ip(&["link", "set", "bridge0", "up"])?;
    scene.node.ping(COLLECTOR_V4, 2, 8)?;
    let wanted = only_vxlan(&[]);
    let mut front = scene.collector.enter(move || Ok(Front::collect("bridge0", &wanted, &patient())?))?;
    ensure!(front.attached() == Attached::Generic, "a bridge has no XDP of its own");
    send(&scene, 4789, numbered(7, 50, 1200))?;
    ensure!(taken(&mut front, 50)?.len() == 50);
    ensure!(scene.node.ping(COLLECTOR_V4, 3, 56)? == 3);
    Ok(())
}

/// Collectors that hang and are killed, again and again, while two pods are mirrored to them: the pods notice
/// nothing, the collector's host keeps all else, and nothing is left.
#[test]
fn root_collectors_die_under_load() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let target = tunnel(COLLECTOR_V4, Tunnel::Vxlan { vni: 7, port: 4789 })?;
    let wishes = scene.pods.iter().map(|pod| mirror(&pod.name, pod, target.clone())).collect();
    node.apply(&mirrors(&scene, wishes))?;
    let [from, to] = &scene.pods[..] else { unreachable!("two pods") };
    let gap = Duration::from_micros(250);
    let stream = UdpStream { destination: to.v4.clone(), port: 9, count: 24_000, size: 400, gap };
    let running = stream.start(&from.netns, &to.netns)?;
    let program = podwire_harness::binary();
    for death in 0..12 {
        let words = ["collect", "--interface", "eth0", "-o", "json"];
        let mut child = scene
            .collector
            .command(&program.to_string_lossy())
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_millis(300));
        if death % 2 == 0 {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGSTOP)?;
            ensure!(scene.node.ping(COLLECTOR_V4, 5, 56)? == 5, "death {death}");
        }
        child.kill()?;
        child.wait()?;
    }
    let report = running.finish()?;
    ensure!(report.is_whole(), "{report:?}");
    let counters = node.session(&target)?;
    ensure!(
        counters.sent_packets >= 48_000 && counters.lost_packets.iter().sum::<u64>() == 0,
        "{counters:?}"
    );
    ensure!(!scene.collector.ip(&["link", "show", "eth0"])?.contains("xdp"), "nothing is left");
    Ok(())
}

/// A consumer that hangs costs what does not fit, to the packet, and nothing else.
#[test]
fn root_a_full_queue_is_counted() -> Result<()> {
    let scene = Topology::new()?;
    scene.warm_up()?;
    let front = front(&scene, only_vxlan(&[]), patient())?;
    let (workers, packets) = Workers::start(front, 100)?;
    send(&scene, 4789, numbered(7, 250, 300))?;
    eventually("all is taken", || Ok(workers.tallies()[0].taken == 250))?;
    ensure!(
        (packets.len() as u64, workers.overflow()) == (100, 150),
        "{} {}",
        packets.len(),
        workers.overflow()
    );
    let first: Vec<bytes::Bytes> = packets.try_iter().map(|packet| packet.into_bytes()).collect();
    ensure!((0u32..100).zip(&first).all(|(number, packet)| packet[64..68] == number.to_be_bytes()));
    send(&scene, 4789, numbered(7, 50, 300))?;
    eventually("there is room again", || Ok(packets.len() == 50))?;
    ensure!(workers.overflow() == 150 && workers.is_alive());
    Ok(())
}

/// Little memory may be locked: the collector says so, and does without.
#[test]
fn root_a_collector_without_locked_memory_says_so() -> Result<()> {
    let scene = Topology::new()?;
    let mut words = vec!["setpriv", "--bounding-set=-ipc_lock,-sys_resource", "--inh-caps=-all", "--"];
    words.extend(["prlimit", "--memlock=65536:65536", "timeout", "-s", "INT", "2"]);
    let program = podwire_harness::binary();
    let program = program.to_string_lossy();
    words.extend([&*program, "collect", "--interface", "eth0", "-o", "json"]);
    let output = scene.collector.run(&words)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("RLIMIT_MEMLOCK") && said.contains("AF_PACKET"), "{said}");
    Ok(())
}

/// A frame is of one pool: another one neither shows its bytes nor takes it.
#[test]
fn root_a_frame_of_another_pool_is_refused() -> Result<()> {
    let mut one = Pool::take(4, 2048)?;
    let mut other = Pool::take(4, 4096)?;
    let mut frame = one.write(&[7; 100]).context("room")?;
    ensure!(one.bytes(&frame) == [7; 100] && other.bytes(&frame).is_empty());
    ensure!(other.bytes_mut(&mut frame).is_empty());
    other.free(frame);
    ensure!(other.ledger().count(Place::Free) == 4 && other.ledger().balances());
    let frame = one.write(&[8; 100]).context("room")?;
    let packet = other.lend([frame]);
    ensure!(packet.is_empty());
    Ok(())
}

/// The interface goes away under a collector: it ends, and says so.
#[test]
fn root_an_interface_that_goes_is_noticed() -> Result<()> {
    let scene = Topology::new()?;
    let mut front = front(&scene, only_vxlan(&[]), patient())?;
    ensure!(front.receivers[0].receive(Duration::from_millis(5))?.is_empty());
    scene.collector.ip(&["link", "del", "eth0"])?;
    let until = Instant::now() + Duration::from_secs(3);
    let error = loop {
        ensure!(Instant::now() < until, "it is not noticed");
        if let Err(error) = front.receivers[0].receive(Duration::from_millis(5)).map(|_| ()) {
            break error.to_string();
        }
    };
    ensure!(error.contains("interface eth0 is gone"), "{error}");
    Ok(())
}
