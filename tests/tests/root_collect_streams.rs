//! Streams made by hand (by scapy, which knows ERSPAN on its own): missing, doubled, swapped, wrapped, restarted numbers;
//! tags, fragments of all sorts, and what is no mirror. And what the collector does with files, taps and refusals.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use podwire_harness::{Capture, RawSocket, Scratch, Topology, eventually};
use podwire_tests::collected::{Collecting, collect, count, frames, packets, session};
use podwire_tests::scapy;
use serde_json::Value;

/// Names that expressions use: an outer Ethernet header, IP headers, and a mirrored frame by number.
const PRELUDE: &str = r#"
load_contrib("erspan")
eth = Ether(src="02:00:00:00:00:aa", dst="ff:ff:ff:ff:ff:ff")
v4 = IP(src="192.0.2.1", dst="192.0.2.9", ttl=64)
v6 = IPv6(src="2001:db8::1", dst="2001:db8::9", hlim=64)
def inner(number, size=20):
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")/IP(src="10.0.0.1", dst="10.0.0.2")/UDP(sport=9, dport=9)/(number.to_bytes(4, "big") + bytes(size))
def gre(number, key=9):
    return eth/v4/GRE(proto=0x6558, seqnum_present=1, key_present=1, key=key, seqence_number=number)/inner(number)
def ii(number, ip=v4, **fields):
    return eth/ip/GRE(proto=0x88be, seqnum_present=1, seqence_number=number)/ERSPAN_II(ver=1, session_id=5, **fields)/inner(number)
def iii(number, ip=v6, **fields):
    return eth/ip/GRE(proto=0x22eb, seqnum_present=1, seqence_number=number)/ERSPAN_III(ver=2, session_id=6, p=1, **fields)/inner(number)
def vxlan(number, ip=v4, vni=7, size=20):
    return eth/ip/UDP(sport=50000, dport=4789)/VXLAN(vni=vni)/inner(number, size)
def cut(packet, size):
    parts = fragment(packet[IP], fragsize=size)
    return [Ether(src="02:00:00:00:00:aa", dst="ff:ff:ff:ff:ff:ff")/part for part in parts]
def cut6(packet, size):
    packet[IPv6].payload = IPv6ExtHdrFragment(nh=packet[IPv6].nh, id=77)/packet[IPv6].payload
    packet[IPv6].nh = 44
    return fragment6(packet, size)
"#;

struct Stage {
    scene: Topology,
    scratch: Scratch,
    wire: RawSocket,
}

impl Stage {
    fn new() -> Result<Self> {
        let (scene, scratch) = (Topology::new()?, Scratch::new()?);
        let wire = RawSocket::open(&scene.node, "uplink0")?;
        Ok(Self { scene, scratch, wire })
    }

    fn collect(&self, words: &[&str]) -> Result<Collecting> {
        Collecting::start(&self.scene.collector, self.scratch.path(), words)
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).to_string_lossy().into_owned()
    }

    fn send(&self, frames: &[Vec<u8>]) -> Result<()> {
        frames.iter().try_for_each(|frame| self.wire.send(frame))
    }
}

fn made(expressions: &[String]) -> Result<Vec<Vec<u8>>> {
    scapy::frames(&[], PRELUDE, expressions)
}

/// The number that a mirrored frame carries.
fn number(frame: &[u8]) -> Result<u32> {
    let bytes = frame.get(42..46).context("a short frame")?;
    Ok(u32::from_be_bytes(bytes.try_into()?))
}

fn written(file: &str) -> Result<Vec<u32>> {
    frames(Path::new(file))?.iter().map(|(_, frame)| number(frame)).collect()
}

/// What the numbers of a stream say: lost, duplicates, reordered, late, restarts.
fn books(one: &Value) -> [u64; 5] {
    ["lost", "duplicates", "reordered", "late", "restarts"].map(|field| count(one, field))
}

#[test]
fn root_numbers_of_each_kind_are_read_exactly() -> Result<()> {
    let stage = Stage::new()?;
    let most = u32::MAX;
    let cases: [(&str, Vec<u32>, [u64; 5]); 6] = [
        ("missing", vec![1, 2, 5, 6, 7, 10, 11], [4, 0, 0, 0, 0]),
        ("doubled", vec![1, 2, 2, 3, 4, 4, 4, 5], [0, 3, 0, 0, 0]),
        ("swapped", vec![1, 3, 2, 4, 7, 6, 5, 8], [0, 0, 3, 0, 0]),
        ("wrapped", vec![most - 2, most - 1, most, 0, 1, 3, 2], [0, 0, 1, 0, 0]),
        ("restarted", vec![70_001, 70_002, 70_003, 0, 1, 2, 4], [1, 0, 0, 0, 1]),
        ("a stray", vec![70_001, 70_002, 3, 70_003, 70_004], [0, 0, 0, 1, 0]),
    ];
    for (kind, word) in [("gre", "GRE"), ("ii", "ERSPAN II"), ("iii", "ERSPAN III")] {
        for (case, numbers, expected) in &cases {
            let frames = made(&numbers.iter().map(|number| format!("{kind}({number})")).collect::<Vec<_>>())?;
            for reorder in [None, Some("16")] {
                let file = stage.path("numbers.pcapng");
                let mut words = vec!["-w", &file];
                words.extend(reorder.into_iter().flat_map(|frames| ["--reorder", frames]));
                let collecting = stage.collect(&words)?;
                stage.send(&frames)?;
                let summary = collecting.stop()?;
                let one = session(&summary, word, None, kind == "iii")?;
                let about = format!("{kind} {case} {reorder:?}: {one:#}");
                assert_eq!(one["frames"], numbers.len(), "{about}");
                assert_eq!(&books(one), expected, "{about}");
                let out = written(&file)?;
                assert_eq!(out.len() as u64, count(one, "released"), "{about}");
                if reorder.is_some() {
                    let steps = out.windows(2).filter(|pair| pair[1] < pair[0]).count();
                    assert_eq!(steps, usize::from(matches!(*case, "wrapped" | "restarted")), "{out:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn root_cut_late_and_fragmented_frames_are_told_apart() -> Result<()> {
    let stage = Stage::new()?;
    let frames = made(&[
        "ii(1, t=1)".into(),
        "ii(2)".into(),
        "iii(1, t=1, d=1)".into(),
        "iii(2, d=0)".into(),
        // A timestamp that lies ahead by half an hour, in units of 100 microseconds; Gra is the last but one field.
        "iii(3, timestamp=(int(time.time() * 10000) + 18000000) & 0xffffffff)".into(),
        "vxlan(1, ip=v6)".into(),
        "vxlan(1, size=2)[:-8] if False else Ether(raw(vxlan(1))[:60])".into(),
        "eth/v4/UDP(sport=1, dport=6081)/bytes.fromhex('0080655800000700')/inner(1)".into(),
        "eth/v4/GRE(proto=0x0800)/IP()/UDP()".into(),
    ])?;
    let file = stage.path("cut.pcapng");
    // By AF_XDP what is no tunnel does not come at all.
    let collecting = stage.collect(&["-w", &file, "--af-packet"])?;
    stage.send(&frames)?;
    let summary = collecting.stop()?;
    assert_eq!(session(&summary, "ERSPAN II", None, false)?["truncated"], 1, "{summary:#}");
    let iii = session(&summary, "ERSPAN III", None, true)?;
    assert_eq!((&iii["truncated"], &iii["frames"]), (&1.into(), &3.into()), "{iii:#}");
    assert!(iii["latency"]["ahead"].as_u64().is_some_and(|ahead| ahead >= 1), "{iii:#}");
    assert_eq!(summary["undecodable"]["IPv4: cut short"], 1, "{summary:#}");
    assert_eq!(summary["undecodable"]["GENEVE: control packet"], 1, "{summary:#}");
    assert!(summary["notTunnels"].as_u64().is_some_and(|count| count >= 1), "{summary:#}");
    // Directions as tshark reads them: in is what the mirrored port received.
    let path = Path::new(&file);
    assert_eq!(Capture::count(path, 0, "frame.packet_flags_direction == 2")?, 1);
    assert_eq!(packets(path)?, 6);
    Ok(())
}

#[test]
fn root_fragments_of_all_sorts() -> Result<()> {
    let stage = Stage::new()?;
    let pieces = |expression: &str, count: usize| {
        made(&(0..count).map(|at| format!("({expression})[{at}]")).collect::<Vec<_>>())
    };
    let v4 = pieces("cut(vxlan(1, ip=IP(src='192.0.2.1', dst='192.0.2.9', id=1), size=3000), 800)", 4)?;
    let v6 = pieces("cut6(vxlan(2, ip=v6, size=3000), 800)", 5)?;
    let overlap = made(&[
        "eth/IP(src='192.0.2.1', dst='192.0.2.9', id=3, flags='MF', proto=47)/bytes(64)".into(),
        "eth/IP(src='192.0.2.1', dst='192.0.2.9', id=3, frag=4, proto=47)/bytes(64)".into(),
    ])?;
    let alone = made(&[
        "eth/IP(src='192.0.2.1', dst='192.0.2.9', id=4, flags='MF', frag=2, proto=47)/bytes(64)".into(),
    ])?;
    let file = stage.path("parts.pcapng");
    // By AF_XDP fragments follow their first; here they come before it.
    let collecting = stage.collect(&["-w", &file, "--af-packet"])?;
    stage.send(&v4.iter().rev().cloned().collect::<Vec<_>>())?;
    stage.send(&v6[..2])?;
    stage.send(&v6[1..])?;
    stage.send(&overlap)?;
    stage.send(&alone)?;
    std::thread::sleep(Duration::from_millis(1300));
    let summary = collecting.stop()?;
    let parts = &summary["fragments"];
    for (field, expected) in [("packets", 2), ("used", 9), ("duplicates", 1), ("overlaps", 2), ("expired", 1)]
    {
        assert_eq!(parts[field], expected, "{field}: {parts:#}");
    }
    assert_eq!(written(&file)?, [1, 2]);
    assert!(frames(Path::new(&file))?.iter().all(|(_, frame)| frame.len() == 3046));
    Ok(())
}

/// Tags before the outer header, one and two of them: the kernel takes one off, and the source puts it back.
#[test]
fn root_outer_vlan_tags_are_put_back() -> Result<()> {
    let stage = Stage::new()?;
    let frames = made(
        &["vxlan(1)", "Ether(src='02:00:00:00:00:aa', dst='ff:ff:ff:ff:ff:ff')/Dot1Q(vlan=5, prio=3)/vxlan(2)[IP]",
          "Ether(src='02:00:00:00:00:aa', dst='ff:ff:ff:ff:ff:ff', type=0x88a8)/Dot1Q(vlan=6)/Dot1Q(vlan=7)/vxlan(3, ip=v6)[IPv6]"]
            .map(String::from),
    )?;
    let sent = frames.clone();
    let (ready, wait) = std::sync::mpsc::channel();
    let seen = stage.scene.collector.enter_later(move || {
        let wanted = podwire_datapath::collect::Wanted::default();
        let mut source = podwire_datapath::collect::open("eth0", &wanted)?.source;
        ready.send(())?;
        let mut seen = Vec::new();
        for _ in 0..100 {
            source.receive(Duration::from_millis(50), &mut |received| seen.push(received.data.to_vec()))?;
            if seen.len() >= 3 {
                break;
            }
        }
        Ok(seen)
    })?;
    wait.recv()?;
    stage.send(&frames)?;
    let seen = seen.join().ok().context("it panicked")??;
    assert_eq!(seen, sent);
    Ok(())
}

#[test]
fn root_files_are_rotated_and_compressed() -> Result<()> {
    let stage = Stage::new()?;
    let frames = made(&(0..50).map(|number| format!("ii({number})")).collect::<Vec<_>>())?;
    for (compress, end) in [(None, "pcapng"), (Some("gz"), "pcapng.gz"), (Some("zstd"), "pcapng.zst")] {
        let folder = tempfile::tempdir_in(stage.scratch.path())?;
        let file = folder.path().join(format!("ring.{end}")).to_string_lossy().into_owned();
        let mut words = vec!["-w", &file, "--rotate-seconds", "1"];
        words.extend(compress.into_iter().flat_map(|how| ["--compress", how]));
        if compress.is_none() {
            words.extend(["--rotate-bytes", "20k"]);
        }
        let collecting = stage.collect(&words)?;
        for _ in 0..20 {
            stage.send(&frames)?;
            std::thread::sleep(Duration::from_millis(120));
        }
        let summary = collecting.stop()?;
        assert_eq!(summary["frames"], 1000, "{summary:#}");
        let mut names: Vec<_> = std::fs::read_dir(folder.path())?.flatten().map(|one| one.path()).collect();
        names.sort();
        ensure!(names.len() >= if compress.is_none() { 5 } else { 2 }, "{names:?}");
        let mut all = 0;
        for name in &names {
            let count = packets(name)?;
            ensure!(count > 0, "{} is empty", name.display());
            all += count;
        }
        assert_eq!(all, 1000, "{names:?}");
    }
    // Only the last ones are kept.
    let folder = tempfile::tempdir_in(stage.scratch.path())?;
    let file = folder.path().join("kept.pcapng").to_string_lossy().into_owned();
    let collecting = stage.collect(&["-w", &file, "--rotate-bytes", "2k", "--files", "3"])?;
    stage.send(&frames)?;
    collecting.stop()?;
    let names: Vec<_> = std::fs::read_dir(folder.path())?.flatten().collect();
    assert_eq!(names.len(), 3, "{names:?}");
    Ok(())
}

/// A file system of 256 kilobytes; unmounted on drop.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(stage: &Stage) -> Result<Self> {
        let folder = stage.scratch.path().join("small");
        std::fs::create_dir(&folder)?;
        mount(Some("small"), &folder, Some("tmpfs"), MsFlags::empty(), Some("size=256k"))?;
        Ok(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// What does not fit is counted and told once, and the file is whole.
#[test]
fn root_a_full_disk_is_counted() -> Result<()> {
    let stage = Stage::new()?;
    let small = Small::mount(&stage)?;
    let frames = made(&(0..40).map(|number| format!("vxlan({number}, size=900)")).collect::<Vec<_>>())?;
    let file = small.0.join("full.pcapng");
    let collecting = stage.collect(&["-w", &file.to_string_lossy()])?;
    for _ in 0..20 {
        stage.send(&frames)?;
        std::thread::sleep(Duration::from_millis(60));
    }
    let (code, said, summary) = collecting.stop_badly()?;
    assert_eq!(code, Some(1), "{said:?}");
    // What is smaller may still fit, and fail anew after it.
    assert!((1..=3).contains(&said.len()), "{said:?}");
    assert!(said.iter().all(|line| line.starts_with("error: writing ")), "{said:?}");
    let lost = summary["lost"]["sink"]["file not written"].as_u64().context("lost")?;
    assert_eq!((&summary["frames"], &summary["delivered"]), (&800.into(), &800.into()), "{summary:#}");
    assert!(lost > 400, "{summary:#}");
    assert_eq!(packets(&file)? as u64 + lost, 800);
    Ok(())
}

#[test]
fn root_a_tap_gets_the_mirrored_frames_and_goes() -> Result<()> {
    let stage = Stage::new()?;
    let frames = made(&(0..40).map(|number| format!("vxlan({number})")).collect::<Vec<_>>())?;
    let collecting = stage.collect(&["--tap", "mirror0"])?;
    let netns = &stage.scene.collector;
    let capture = Capture::start(netns, "mirror0", stage.scratch.path(), "udp", 0)?;
    stage.send(&frames)?;
    eventually("the tap has them", || Ok(netns.counter("mirror0", "rx", "packets")? == 40))?;
    let file = capture.stop();
    assert_eq!(Capture::count(&file, 0, "ip.src == 10.0.0.1 && udp.dstport == 9 && !vxlan")?, 40);
    let summary = collecting.stop()?;
    assert_eq!(summary["lost"]["sink"]["tap refused"], 0, "{summary:#}");
    assert!(netns.counter("mirror0", "rx", "packets").is_err(), "the tap is gone");
    // And so it is when nobody says goodbye.
    let collecting = stage.collect(&["--tap", "mirror0"])?;
    netns.counter("mirror0", "rx", "packets")?;
    collecting.kill()?;
    eventually("the tap is gone", || Ok(netns.counter("mirror0", "rx", "packets").is_err()))
}

#[test]
fn root_the_end_comes_by_count_and_by_time() -> Result<()> {
    let stage = Stage::new()?;
    let frames = made(&(0..40).map(|number| format!("gre({number})")).collect::<Vec<_>>())?;
    let file = stage.path("count.pcapng");
    let collecting = stage.collect(&["--count", "25", "-w", &file])?;
    stage.send(&frames)?;
    assert_eq!(collecting.end()?["delivered"], 25);
    assert_eq!(packets(Path::new(&file))?, 25);
    let began = std::time::Instant::now();
    let collecting = stage.collect(&["--duration", "700ms", "--interval", "100ms"])?;
    let summary = collecting.end()?;
    assert!(began.elapsed() < Duration::from_secs(5) && summary["frames"] == 0, "{summary}");
    Ok(())
}

/// The node's own tunnels are not taken for mirrors, whatever it takes to say so.
#[test]
fn root_refusals_name_what_is_in_the_way() -> Result<()> {
    let stage = Stage::new()?;
    let netns = &stage.scene.collector;
    stage.scene.vxlan(7, 4789)?;
    let geneve = netns.run(&["ip", "link", "add", "gnv0", "type", "geneve", "external"])?.status.success();
    let (geneve_code, geneve_said) =
        if geneve { (3, "device gnv0 of this node receives GENEVE") } else { (0, "") };
    let words = [
        "ip",
        "link",
        "add",
        "gt0",
        "type",
        "gretap",
        "key",
        "5",
        "local",
        "192.0.2.9",
        "remote",
        "192.0.2.1",
    ];
    let gretap = netns.run(&words)?.status.success()
        && netns.run(&["ip", "link", "set", "gt0", "up"])?.status.success();
    let (gre_code, gre_said) = if gretap { (3, "device gt0 of this node receives GRE") } else { (0, "") };
    netns.ip(&["link", "add", "dummy7", "type", "veth", "peer", "name", "dummy8"])?;
    let short = ["-i", "eth0", "--duration", "100ms"];
    for (words, code, said) in [
        (&["-i", "nope", "--duration", "1s"][..], 3, "interface nope does not exist"),
        (&short, 3, "device vxlan7 of this node receives VXLAN at port 4789"),
        (&[&short[..], &["--vni", "7"]].concat(), 3, "VNI 7 at VXLAN port 4789 is that of device vxlan7"),
        (&[&short[..], &["--format", "geneve"]].concat(), geneve_code, geneve_said),
        (&[&short[..], &["--format", "gre,erspan"]].concat(), gre_code, gre_said),
        (&[&short[..], &["--key", "6"]].concat(), 0, ""),
        (&[&short[..], &["--vni", "8"]].concat(), 0, ""),
        (&[&short[..], &["--vxlan-port", "1111", "--format", "vxlan"]].concat(), 0, ""),
        (&[&short[..], &["--key", "6", "--tap", "dummy7"]].concat(), 3, "dummy7 is no tap"),
        (&[&short[..], &["--key", "6", "-w", "/nowhere/x"]].concat(), 1, "/nowhere/x"),
        (&[&short[..], &["--key", "6", "-w", "/dev/full"]].concat(), 1, "/dev/full"),
        (&[&short[..], &["--format", "gre", "--vni", "7"]].concat(), 2, "--vni is about vxlan or geneve"),
        (&[&short[..], &["--files", "3", "-w", "/tmp/x"]].concat(), 2, "--rotate-bytes"),
    ] {
        let output = collect(netns, words)?;
        let (code_was, text) = (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned());
        assert_eq!(code_was, Some(code), "{words:?}: {text}");
        let errors: Vec<_> = text.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), usize::from(code != 0), "{words:?}: {text}");
        assert!(text.contains(said), "{words:?}: {text}");
    }
    Ok(())
}

/// Nobody reads standard output for a while: nothing is lost meanwhile.
#[test]
fn root_a_reader_that_stalls_costs_no_frame() -> Result<()> {
    let stage = Stage::new()?;
    let frames = made(&(0..40).map(|number| format!("vxlan({number})")).collect::<Vec<_>>())?;
    let folder = stage.scratch.path().to_string_lossy().into_owned();
    let program = podwire_harness::binary().to_string_lossy().into_owned();
    let script = format!(
        "{program} collect --interface eth0 -o json --interval 5ms --duration 5s 2>{folder}/said | (sleep 4; cat >{folder}/lines)"
    );
    let collecting =
        stage.scene.collector.enter_later(move || podwire_harness::run(&["sh", "-c", &script]))?;
    podwire_harness::eventually("it listens", || {
        Ok(std::fs::read_to_string(stage.scratch.path().join("said"))
            .is_ok_and(|said| said.contains("collecting: ")))
    })?;
    for _ in 0..25 {
        stage.send(&frames)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    collecting.join().ok().context("it panicked")??;
    let lines = std::fs::read_to_string(stage.scratch.path().join("lines"))?;
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().context("no line")?)?;
    assert_eq!(last["frames"], 1000, "{last:#}");
    Ok(())
}
