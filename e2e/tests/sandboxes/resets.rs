//! Reused sandboxes: a hostile workload leaves something everywhere that root in a sandbox can write. The next holder
//! of the sandbox must find the same state as in an unused sandbox.
//!
//! `GRPO_RESET_CYCLES` is the number of cycles.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use grpo_sandbox_protocol::Priority;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::pool::{Pool, SANDBOXES, shell, task};
use crate::support::{Result, SOON};

const AT_ONCE: usize = 4;
/// Figure 9.
const BAR: Duration = Duration::from_millis(1500);

/// Everything that a holder can see of earlier holders: every file with its mode, owner and length, important ones with
/// their content, the pod's state that containers share, processes, sockets, System V objects.
const LOOK: &str = r#"export LC_ALL=C; {
find / -xdev \( -path /proc -o -path /sys \) -prune -o -printf '%p %m %U %G %s %l\n' | grep -vE '^/(etc/(hosts|hostname|resolv.conf))? ' | sort
find /etc /root /testbed /opt /usr/local /tmp -xdev -type f -not -path /etc/hosts -not -path /etc/hostname -not -path /etc/resolv.conf -exec sha256sum {} + | sort
for f in /etc/hosts /etc/hostname /etc/resolv.conf; do stat -c '%a %u %g' $f; cat $f; done
find /dev -printf '%p %m %U %G\n' | grep -v /dev/pts | sort; find /sys/fs/cgroup -maxdepth 1 -printf '%f\n' | sort
python3 -S -c "import os
for f in ('/etc/hosts', '/etc/hostname', '/etc/resolv.conf', '/dev/shm', '/dev/mqueue'): print(f, os.listxattr(f))"
for f in shm sem msg; do tail -n +2 /proc/sysvipc/$f; done
cat /proc/[0-9]*/comm | grep -vE '^(sh|cat|grep|sort|sed)$' | sort
for f in tcp tcp6 udp udp6; do awk '$4 != "01" && $4 != "06" && NR > 1 { print $2, $4 }' /proc/net/$f; done; tail -n +2 /proc/net/unix | wc -l
df --output=itotal,iused /dev/shm; id; hostname; umask; env | grep -v ^GRPO_EXEC | sort
} | sed "s/$HOSTNAME/HOSTNAME/g; s/$(hostname -i)/ADDRESS/g; s/@0x[0-9a-f]*//""#;

const LEAVE: &str = r#"cd /
for f in /left /tmp/left /var/tmp/left /root/.bashrc /etc/profile.d/left.sh /dev/left /dev/shm/left /sys/fs/cgroup/left /dev/termination-log; do echo left > $f; done
echo 'left:x:0:0::/:/bin/sh' >> /etc/passwd; echo left > /testbed/left.py; echo 'print("left")' > /opt/task/run.py; rm -rf /usr/share/doc /var/log
printf '#!/bin/sh\necho left\n' > /usr/local/bin/git; chmod +x /usr/local/bin/git; cp /bin/true /bin/ls; chmod 4777 /usr/bin/id
for f in /etc/hosts /etc/hostname /etc/resolv.conf; do echo '6.6.6.6 left' >> $f; chmod 4777 $f; chown 33:33 $f; touch -d 2001-01-01 $f; done
mkdir -p /dev/shm/a/b/c; ln -s / /dev/shm/link; chmod 0 /dev/shm/a; touch /dev/mqueue/left; mkfifo /dev/shm/fifo
python3 -S -c "
import os
for f in ('/etc/hosts', '/etc/resolv.conf', '/dev/shm'):
    try: os.setxattr(f, 'user.left', b'x')
    except OSError: pass"
for n in 1 2 3; do setsid sh -c 'while :; do echo left > /dev/shm/again; echo left >> /etc/hosts; : > /dev/mqueue/again; done' > /dev/null 2>&1 & done
setsid python3 -S -c "
import socket, os, signal, time
for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
t = socket.socket(); t.bind(('0.0.0.0', 4444)); t.listen()
u = socket.socket(socket.AF_UNIX); u.bind('\0left'); u.listen()
m = bytearray(50_000_000)
while True:
    if os.fork() == 0: time.sleep(0.01); os._exit(0)
    os.waitpid(-1, os.WNOHANG); time.sleep(0.01)" > /dev/null 2>&1 &
sleep 0.1; echo all of it"#;

fn cycles() -> usize {
    let cycles = std::env::var("GRPO_RESET_CYCLES").ok();
    cycles.and_then(|text| text.parse().ok()).unwrap_or(50)
}

#[derive(Default)]
struct ResetTally {
    leases: usize,
    pods: BTreeSet<String>,
    /// From the release of a sandbox to its next lease, where both were the same caller's.
    resets: Vec<Duration>,
    contaminated: Vec<String>,
}

/// Lines of one look that the other does not have.
fn differences(clean: &str, seen: &str) -> String {
    let (clean, seen): (BTreeSet<&str>, BTreeSet<&str>) = (clean.lines().collect(), seen.lines().collect());
    let all: Vec<&&str> = clean.symmetric_difference(&seen).take(12).collect();
    format!("{all:?}")
}

async fn one_after_another(pool: &Pool, worker: usize, count: usize, clean: &str) -> Result<ResetTally> {
    let image = task()?["image"].as_str().unwrap_or_default().to_owned();
    let (mut seen, mut before, mut since) = (ResetTally::default(), None, Instant::now());
    for cycle in 0..=count {
        let id = format!("worker-{worker}-{cycle}");
        let sandbox = pool.gateway()?.lease(&id, &image, Priority::Agent, SOON).await?;
        let took = since.elapsed();
        seen.leases += 1;
        if before.replace(sandbox.lease.sandbox.clone()).as_ref() == Some(&sandbox.lease.sandbox) {
            seen.resets.push(took);
        }
        seen.pods.insert(sandbox.lease.sandbox.clone());
        let look = sandbox.exec(&shell("look", LOOK, 60)).await?;
        if look.output != clean {
            seen.contaminated.push(differences(clean, &look.output));
        }
        let left = sandbox.exec(&shell("leave", LEAVE, 60)).await?;
        assert!(left.output.contains("all of it"), "{left:?}");
        since = Instant::now();
        sandbox.release().await;
    }
    Ok(seen)
}

/// Figure 9.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster: make test-sandboxes"]
async fn after_a_reset_nothing_of_a_hostile_workload_is_left() -> Result<()> {
    let limits = json!({"cpu": "2", "memory": "512Mi", "ephemeral-storage": "1Gi"});
    let spec = json!({"max": AT_ONCE + 2, "allowUnenforced": true, "reset": "ContainerRestart", "resources": {"limits": limits}});
    let pool = Pool::new("resets", spec).await?;
    let image = task()?["image"].as_str().unwrap_or_default().to_owned();
    let unused = pool.gateway()?.lease("unused", &image, Priority::Grader, SOON).await?;
    let clean = unused.exec(&shell("look", LOOK, 60)).await?.output;
    assert!(clean.contains("sandboxd") && clean.len() > 100_000, "{clean}");
    let began = Instant::now();
    let each = cycles().div_ceil(AT_ONCE);
    let workers = (0..AT_ONCE).map(|worker| one_after_another(&pool, worker, each, &clean));
    let mut all = ResetTally::default();
    for seen in futures::future::join_all(workers).await {
        let seen = seen?;
        all.resets.extend(seen.resets);
        all.leases += seen.leases;
        all.pods.extend(seen.pods);
        all.contaminated.extend(seen.contaminated);
    }
    all.resets.sort();
    let at = |share: f64| {
        all.resets
            .get((all.resets.len().saturating_sub(1) as f64 * share) as usize)
    };
    pool.scene.say(&format!(
        "{} leases of {} pods in {:?}; of {} resets each took {:?} (p50), {:?} (p95), {:?} (longest) until the same caller had it again; {} contaminations",
        all.leases,
        all.pods.len(),
        began.elapsed(),
        all.resets.len(),
        at(0.5),
        at(0.95),
        at(1.0),
        all.contaminated.len()
    ));
    assert!(all.contaminated.is_empty(), "{}", all.contaminated.join("\n"));
    assert!(
        all.pods.len() <= AT_ONCE + 2,
        "pods were replaced, not reset: {:?}",
        all.pods
    );
    assert!(at(0.5).is_some_and(|took| *took <= BAR), "{:?}", at(0.5));

    // A state that cannot be restored prevents the reset: the pod is replaced.
    let system_v = unused.exec(&shell("leave", "ipcmk -M 4096", 10)).await?;
    assert_eq!(system_v.exit_code, Some(0), "{system_v:?}");
    let pod = unused.lease.sandbox.clone();
    unused.release().await;
    let gone = |there: &grpo_testing::cluster::wait::Objects<Pod>| (!there.contains_key(&pod)).then_some(());
    pool.scene
        .until_pods(SANDBOXES, SOON, "the pod with System V memory to be gone", gone)
        .await?;
    pool.scene.clear().await
}
