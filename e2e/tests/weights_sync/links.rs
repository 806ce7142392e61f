//! The network of the replicas: a bridge, and a namespace for each replica.

use crate::support::Result;
use std::process::Command;

pub const REPLICAS: usize = 4;
/// Of every link, in bits a second, and in bytes.
pub const RATE: &str = "1gbit";
pub const BYTES_A_SECOND: f64 = 125e6;
pub const SOURCE: &str = "10.77.0.1";

fn run(line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let program = words.next().ok_or("an empty command")?;
    let ended = Command::new(program).args(words).output()?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&ended.stderr).trim()).into()),
    }
}

/// A bridge with the source's address, and a namespace for each replica behind it.
pub struct Links;

impl Links {
    pub fn make() -> Result<Self> {
        if std::fs::read_dir("/sys/class/net")?.count() != 1 {
            return Err("this network namespace has more than a loopback device; run it by make bench-sync".into());
        }
        run("ip link set lo up")?;
        run("ip link add pool type bridge")?;
        run(&format!("ip address add {SOURCE}/24 dev pool"))?;
        run("ip link set pool up")?;
        shape("", "pool")?;
        for replica in 0..REPLICAS {
            let space = format!("replica-{replica}");
            run(&format!("ip netns add {space}"))?;
            run(&format!(
                "ip link add r{replica} type veth peer name eth0 netns {space}"
            ))?;
            run(&format!("ip link set r{replica} master pool up"))?;
            shape("", &format!("r{replica}"))?;
            let inside = format!("ip netns exec {space}");
            run(&format!("{inside} ip link set lo up"))?;
            run(&format!(
                "{inside} ip address add {}/24 dev eth0",
                Self::address(replica)
            ))?;
            run(&format!("{inside} ip link set eth0 up"))?;
            shape(&inside, "eth0")?;
        }
        Ok(Self)
    }

    pub fn address(replica: usize) -> String {
        format!("10.77.0.{}", 10 + replica)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for replica in 0..REPLICAS {
            // The namespace ends with this process in any case.
            let _ = run(&format!("ip netns delete replica-{replica}"));
        }
    }
}

/// What a device sends is limited to the rate.
fn shape(inside: &str, device: &str) -> Result<()> {
    run(&format!(
        "{inside} tc qdisc add dev {device} root tbf rate {RATE} burst 512kb latency 50ms"
    ))
}
