//! A node agent in thirty lines: copies all traffic of one pod through VXLAN to a collector.
//!
//! `mirror_pod INTERFACE COLLECTOR SECONDS [BPFFS]`: the host side of the pod's interface, the collector's
//! address, how long. Prints what was counted and takes everything down.

use std::time::Duration;

use podwire_datapath::core::{abi::Direction, wire::encap::Tunnel};
use podwire_datapath::{Datapath, Desired, Endpoint, Mirror, Options, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interface, collector, seconds, rest @ ..] = arguments.as_slice() else {
        return Err("usage: mirror_pod INTERFACE COLLECTOR SECONDS [BPFFS]".into());
    };
    let bpffs = rest.first().map_or(Options::default().bpffs, Into::into);
    let mut datapath = Datapath::open(Options { bpffs, ..Options::default() })?;
    datapath.apply(&Desired {
        endpoints: vec![Endpoint {
            name: "default/pod".into(),
            interface: interface.clone(),
            ..Endpoint::default()
        }],
        mirrors: vec![Mirror {
            name: "everything".into(),
            endpoints: vec!["default/pod".into()],
            directions: Direction::ALL.to_vec(),
            rules: Vec::new(),
            stateful: false,
            options: podwire_datapath::SessionOptions::default(),
            target: Target::Tunnel {
                remote: collector.parse()?,
                tunnel: Tunnel::Vxlan { vni: 1, port: 1111 },
            },
        }],
        ..Desired::default()
    })?;
    std::thread::sleep(Duration::from_secs(seconds.parse()?));
    for (_, target, count) in datapath.counters()?.sessions {
        #[expect(clippy::print_stdout, reason = "the example's result")]
        {
            println!(
                "{target}: matched {} sent {} lost {:?}",
                count.matched_packets, count.sent_packets, count.lost_packets
            );
        }
    }
    Ok(datapath.remove()?)
}
