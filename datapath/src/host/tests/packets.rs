//! Source NAT with real packets: pod ═ node ═ server. The node marks by an nftables table of the test's own.

use std::net::IpAddr;

use podwire_harness::{Capture, NetNs};

use crate::host::snat::{Counters, Snat, Wish};

const MASK: u32 = 0xff00;

fn wish(addresses: &[(u32, &str)]) -> Wish {
    let pair = |(mark, address): &(u32, &str)| (*mark, address.parse::<IpAddr>().unwrap());
    Wish {
        mask: MASK,
        judged: 0xff00,
        addresses: addresses.iter().map(pair).collect(),
        hold: vec!["10.1.0.0/24".parse().unwrap()],
        inside: vec!["10.0.0.0/8".parse().unwrap()],
    }
}

fn mark(node: &NetNs, mark: &str) {
    let _ = node.run(&["nft", "delete", "table", "ip", "test"]);
    let hook = "type filter hook prerouting priority mangle";
    let rules =
        format!("table ip test {{\n chain c {{\n {hook};\n iifname \"pod0\" meta mark set {mark}\n }}\n}}\n");
    node.run_ok(&["nft", &rules]).unwrap();
}

#[test]
fn root_snat_maps_marks_holds_strangers_and_drops_unknown_marks() {
    let [pod, node, server] = ["pod", "host", "srv"].map(|role| NetNs::new(role).unwrap());
    node.ip(&["link", "add", "pod0", "type", "veth", "peer", "name", "eth0", "netns", pod.name()]).unwrap();
    node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "srv0", "netns", server.name()]).unwrap();
    for (netns, device, address) in [
        (&pod, "eth0", "10.1.0.2/24"),
        (&node, "pod0", "10.1.0.1/24"),
        (&node, "up0", "192.0.2.1/24"),
        (&server, "srv0", "192.0.2.9/24"),
    ] {
        netns.ip(&["link", "set", device, "up"]).unwrap();
        netns.ip(&["addr", "add", address, "dev", device]).unwrap();
    }
    for address in ["192.0.2.7/32", "192.0.2.8/32"] {
        node.ip(&["addr", "add", address, "dev", "up0"]).unwrap();
    }
    pod.ip(&["route", "add", "default", "via", "10.1.0.1"]).unwrap();
    server.ip(&["route", "add", "default", "via", "192.0.2.1"]).unwrap();
    node.enter(|| Ok(crate::host::sysctl::forward()?)).unwrap();
    let apply = |wish: Wish| {
        let work = move || {
            let mut snat = Snat::default();
            snat.apply(&wish)?;
            snat.apply(&wish)?;
            Ok(snat.counters()?)
        };
        node.enter(work).unwrap()
    };
    apply(wish(&[(0x100, "192.0.2.7"), (0x200, "2001:db8::7")]));
    let folder = tempfile::tempdir().unwrap();
    let capture = Capture::start(&server, "srv0", folder.path(), "icmp", 0).unwrap();
    assert_eq!(pod.ping("192.0.2.9", 1, 56).unwrap(), 0, "a pod without a mark is held");
    mark(&node, "0x300");
    assert_eq!(pod.ping("192.0.2.9", 1, 56).unwrap(), 0, "a mark without an address goes nowhere");
    mark(&node, "0x1ff");
    // One flow, by its identifier: it follows the address.
    let flow = ["ping", "-c", "1", "-W", "1", "-e", "77", "192.0.2.9"];
    pod.run_ok(&flow).unwrap();
    // As after a restart: the table is taken over, only the element changes, counters stay.
    let counters = apply(wish(&[(0x100, "192.0.2.8")]));
    assert_eq!(counters, Counters { held: 1, unknown: 1 });
    pod.run_ok(&flow).unwrap();
    mark(&node, "0xff00");
    pod.ping("192.0.2.9", 1, 56).unwrap();
    let file = capture.stop();
    let sources = Capture::fields(&file, 0, "icmp.type == 8", &["ip.src"]).unwrap().concat();
    assert_eq!(sources, ["192.0.2.7", "192.0.2.8", "10.1.0.2"]);
    node.enter(|| Ok(Snat::default().apply(&Wish::default())?)).unwrap();
    assert!(!node.run_ok(&["nft", "list", "tables"]).unwrap().contains("podwire"));
}
