//! The command line.

mod capture;
mod check;
mod collect;
mod get;
mod objects;
mod observe;
mod output;
mod traceflow;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

pub use check::features;
pub use traceflow::flow::Flow;

use crate::client::Client;
use crate::daemon;
use crate::failure::Failure;

/// The pod datapath of a Linux node: mirror or redirect chosen pod traffic, guard and forward it, choose its way out.
#[derive(Debug, Parser)]
#[command(name = "podwire", version, propagate_version = true, disable_help_subcommand = true)]
#[command(
    after_help = "Examples:\n  podwire check\n  podwire agent --config /etc/podwire --node node-1 --uplink eth0\n  podwire get tc --watch"
)]
pub struct Arguments {
    /// Socket of the agent; podwire capture takes several, each after a --socket of its own.
    #[arg(long, global = true, env = "PODWIRE_SOCKET", default_value = "/run/podwire/podwire.sock")]
    socket: Vec<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon of this node.
    #[command(
        after_help = "Examples:\n  podwire agent --config /etc/podwire --node node-1 --uplink eth0\n  podwire agent --config /etc/podwire --node node-1 --uplink eth0 --forwarding native --egress-except 10.0.0.0/8"
    )]
    Agent(daemon::Options),
    /// Take down what an agent left in force.
    #[command(
        after_help = "Examples:\n  podwire cleanup\n  podwire cleanup --bpffs /sys/fs/bpf/podwire-test"
    )]
    Cleanup {
        /// Folder of the pins.
        #[arg(long, default_value = "/sys/fs/bpf/podwire")]
        bpffs: PathBuf,
    },
    /// Put objects in force.
    #[command(
        after_help = "Examples:\n  podwire apply -f mirror-web.yaml\n  cat *.yaml | podwire apply -f -"
    )]
    Apply {
        /// File or folder to read, - for standard input.
        #[arg(short, long = "filename", value_name = "FILE", required = true)]
        filename: Vec<PathBuf>,
        /// Only say what would happen.
        #[arg(long)]
        dry_run: bool,
    },
    /// Take objects out of force.
    #[command(
        after_help = "Examples:\n  podwire delete -f mirror-web.yaml\n  podwire delete trafficcontrol mirror-web\n  podwire delete egress foobar\n  podwire delete traceflow NAME"
    )]
    Delete {
        /// File whose objects go, - for standard input.
        #[arg(short, long = "filename", value_name = "FILE", conflicts_with_all = ["kind", "name"])]
        filename: Vec<PathBuf>,
        /// Kind of the object.
        #[arg(required_unless_present = "filename")]
        kind: Option<String>,
        /// Its name.
        #[arg(required_unless_present = "filename")]
        name: Option<String>,
        /// Its namespace.
        #[arg(short, long, default_value = "default")]
        namespace: String,
    },
    /// Show what is in force and what was counted.
    #[command(
        after_help = "Examples:\n  podwire get tc\n  podwire get egresses -o wide\n  podwire get sessions --watch\n  podwire get endpoints web-0 -o yaml\n  podwire get traceflows"
    )]
    Get {
        /// trafficcontrols (tc), egresses (eg), endpoints (ep), nodes (no), sessions, traceflows (tf), captures
        /// (cap), status or events (ev).
        kind: Kind,
        /// Only the object of this name.
        name: Option<String>,
        /// Only objects of this namespace.
        #[arg(short, long)]
        namespace: Option<String>,
        /// table, wide, json or yaml.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
        /// Go on, and show every change.
        #[arg(short, long)]
        watch: bool,
    },
    /// Show one object with everything that is known of it.
    #[command(
        after_help = "Examples:\n  podwire describe tc mirror-web\n  podwire describe egress foobar\n  podwire describe traceflow NAME"
    )]
    Describe {
        /// trafficcontrol (tc), egress (eg), endpoint (ep), node (no), session, traceflow (tf) or capture (cap).
        kind: Kind,
        /// Its name.
        name: String,
        /// Its namespace.
        #[arg(short, long)]
        namespace: Option<String>,
    },
    /// Show what stages did with packets that are traced, and with packets that they dropped.
    ///
    /// Shows the last ones that the agent has kept. What was not shown, and why, is said on standard error.
    #[command(
        after_help = "Examples:\n  podwire observe\n  podwire observe --follow --pod default/web-0\n  podwire observe --follow --component SpoofGuard -o json"
    )]
    Observe(observe::Wanted),
    /// Trace a packet: what each stage on each node did with it, and what became of it.
    ///
    /// Makes a packet that a pod seems to send, or with --live-traffic takes one of the pods' own, waits for the end
    /// and prints what was seen. Unless --ttl-after-finished or --nowait is given, nothing is left of it.
    #[command(
        visible_aliases = ["tf", "traceflows"],
        after_help = "Exit codes: 0 delivered, or left the network; 1 dropped; 2 wrong use; 3 no result: refused, or it took too long; \
                      4 no agent. With --expect: 0 as expected, 1 not.\n\n\
                      Examples:\n  podwire traceflow -S default/nginx -D 142.250.195.46\n  \
                      podwire traceflow -S web-0 -D shop/cart -f tcp,tcp_dst=80 -o svg > way.svg\n  \
                      podwire traceflow -S web-0 -D 2001:db8::1 -f ipv6,udp,udp_dst=53 --ttl 3\n  \
                      podwire traceflow -L -D web-0 -f tcp,tcp_dst=80,tcp_flags=+syn-ack --count 10 --replies --capture web.pcapng\n  \
                      podwire traceflow -L -S web-0 --dropped-only -t 60s\n  \
                      podwire traceflow -S web-0 -D 198.51.100.5 --expect egress=foobar\n  \
                      podwire traceflow -r saved.yaml -o mermaid"
    )]
    Traceflow(Box<traceflow::Wanted>),
    /// Capture packets at a pod, or at both ends, to pcapng.
    ///
    /// From the line that says "capturing" on no packet is missed; what could not be kept is counted and told at the end.
    /// Ctrl-C ends it and leaves a whole file. Nothing else is disturbed, and nothing is left.
    #[command(
        after_help = "Exit codes: 0 it ended by a limit; 1 it failed; 2 wrong use; 3 refused; 4 no agent, or the agent went away; \
                      130 interrupted. The file is whole in any case.\n\n\
                      Examples:\n  podwire capture -S web-0 -w web.pcapng\n  \
                      podwire capture -S web-0 -f tcp,tcp_dst=80 --count 100 -w - | wireshark -k -i -\n  \
                      podwire capture -S shop/web-0 -D shop/cart --duration 30s -w both.pcapng\n  \
                      podwire capture -S web-0 -D 203.0.113.9 --snaplen 128 --direction out\n  \
                      podwire capture -S web-7 --wait -w first.pcapng\n  \
                      podwire --socket n1.sock --socket n2.sock capture -S web-0 -D db-0 -w across.pcapng"
    )]
    Capture(Box<capture::Wanted>),
    /// Receive mirrored streams, take them out of their tunnels, and count, write or hand on what is in them.
    ///
    /// Streams of VXLAN, GENEVE, GRE and ERSPAN over IPv4 and IPv6 are told apart by sender, receiver, kind and
    /// identifier. On a terminal a table of them is kept up to date; elsewhere there is a JSON object a line. Needs
    /// no agent.
    #[command(
        after_help = "Exit codes: 0 ended by count, duration or Ctrl-C; 1 it failed; 2 wrong use; 3 refused: the interface is \
                      not there, or a tunnel of this node uses the same port or VNI.\n\n\
                      Examples:\n  podwire collect --interface eth1\n  \
                      podwire collect --interface eth1 --vni 7 -w web.pcapng --duration 60s\n  \
                      podwire collect --interface eth1 --format erspan --session 5 --reorder 64 --tap mirror0\n  \
                      podwire collect --interface eth1 -w ring.pcapng.gz --compress gz --rotate-bytes 100M --files 10\n  \
                      podwire collect --interface eth1 -o json --count 1000"
    )]
    Collect(Box<collect::Wanted>),
    /// Show what this kernel offers, what is missing, and what that costs.
    #[command(after_help = "Examples:\n  podwire check\n  podwire check -o json")]
    Check {
        /// table, json or yaml.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Write the definitions of podwire's objects for a Kubernetes API server.
    #[command(after_help = "Examples:\n  podwire crds deploy/crds\n  kubectl apply -f deploy/crds")]
    Crds {
        /// Folder to write to.
        folder: PathBuf,
    },
    /// Print a completion script.
    #[command(after_help = "Examples:\n  podwire completion bash > /etc/bash_completion.d/podwire")]
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages.
    #[command(after_help = "Examples:\n  podwire man /usr/local/share/man/man1")]
    Man {
        /// Folder to write to.
        folder: PathBuf,
    },
    /// Print the version.
    #[command(after_help = "Examples:\n  podwire version\n  podwire version -o json")]
    Version(VersionArguments),
}

#[derive(Debug, Args)]
struct VersionArguments {
    /// table, json or yaml.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// What can be got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Policies.
    #[value(name = "trafficcontrols", alias = "trafficcontrol", alias = "tc")]
    TrafficControls,
    /// Policies on how traffic leaves the cluster.
    #[value(name = "egresses", alias = "egress", alias = "eg")]
    Egresses,
    /// Pods' interfaces.
    #[value(name = "endpoints", alias = "endpoint", alias = "ep")]
    Endpoints,
    /// The cluster's nodes, and what is wrong with this one.
    #[value(name = "nodes", alias = "node", alias = "no")]
    Nodes,
    /// Mirror sessions.
    #[value(name = "sessions", alias = "session")]
    Sessions,
    /// Traces that run, and those whose results are kept.
    #[value(name = "traceflows", alias = "traceflow", alias = "tf")]
    Traceflows,
    /// The agent as a whole, and where its objects stand.
    #[value(name = "status")]
    Status,
    /// Captures that run.
    #[value(name = "captures", alias = "capture", alias = "cap")]
    Captures,
    /// What changed of late.
    #[value(name = "events", alias = "event", alias = "ev")]
    Events,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For eyes.
    Table,
    /// For eyes, with more columns.
    Wide,
    /// For scripts.
    Json,
    /// For scripts and eyes.
    Yaml,
}

/// Runs a command.
pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { socket: sockets, command } = arguments;
    let command = match command {
        Command::Capture(wanted) => return capture::capture(sockets, &wanted),
        other => other,
    };
    let socket = match <[PathBuf; 1]>::try_from(sockets) {
        Ok([socket]) => socket,
        Err(sockets) => {
            let line = format!("{} sockets; only podwire capture speaks to several agents", sockets.len());
            return Err(Failure::Usage(vec![line]));
        }
    };
    match command {
        Command::Capture(_) => Ok(()),
        Command::Agent(options) => daemon::run(options, &socket),
        Command::Cleanup { bpffs } => {
            let options = podwire_datapath::Options { bpffs, ..Default::default() };
            Ok(podwire_datapath::Datapath::open(options)?.remove()?)
        }
        Command::Apply { filename, dry_run } => objects::apply(&Client::new(socket), &filename, dry_run),
        Command::Delete { filename, kind, name, namespace } => {
            let named = kind.zip(name);
            objects::delete(&Client::new(socket), &filename, named, &namespace)
        }
        Command::Get { kind, name, namespace, output, watch } => {
            get::get(&Client::new(socket), &get::Wanted { kind, name, namespace }, output, watch)
        }
        Command::Describe { kind, name, namespace } => {
            get::describe(&Client::new(socket), &get::Wanted { kind, name: Some(name), namespace })
        }
        Command::Observe(wanted) => observe::observe(&Client::new(socket), &wanted),
        Command::Traceflow(wanted) => traceflow::trace(&Client::new(socket), &wanted),
        Command::Collect(wanted) => collect::collect(&wanted),
        Command::Check { output } => check::check(output),
        Command::Crds { folder } => {
            for path in crate::kubernetes::crd::write(&folder)? {
                writeln!(anstream::stdout(), "{}", path.display())?;
            }
            Ok(())
        }
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "podwire", &mut script);
            Ok(anstream::stdout().write_all(&script)?)
        }
        Command::Man { folder } => {
            std::fs::create_dir_all(&folder)?;
            Ok(clap_mangen::generate_to(Arguments::command(), &folder)?)
        }
        Command::Version(VersionArguments { output }) => {
            let version = serde_json::json!({"version": env!("CARGO_PKG_VERSION"), "abi": podwire_datapath::core::abi::ABI_VERSION});
            match output {
                Format::Table | Format::Wide => {
                    Ok(writeln!(anstream::stdout(), "podwire {}", env!("CARGO_PKG_VERSION"))?)
                }
                _ => output::print_value(&version, output),
            }
        }
    }
}
