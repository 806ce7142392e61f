"""Owns the OCI layout: deterministic layer tars, each kept once, and images that name them."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

# Left out of the base: what neither tests, git's local commands nor a shell want.
PRUNED = (
    "dev/", "boot", "var/cache", "var/lib/apt", "var/lib/dpkg/info", "var/log", "usr/share/doc", "usr/share/man",
    "usr/share/locale", "usr/share/info", "usr/share/perl", "usr/share/perl5", "usr/share/gitweb", "usr/share/git-core",
    "usr/share/bash-completion", "usr/share/lintian", "usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl-base",
    "usr/lib/x86_64-linux-gnu/libperl", "usr/lib/x86_64-linux-gnu/gconv", "usr/bin/perl", "usr/bin/scalar", "usr/bin/git-shell",
    "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/idlelib", "usr/lib/python3.11/lib2to3", "usr/lib/python3.11/ensurepip",
    "usr/lib/python3.11/distutils", "usr/lib/python3.11/test", "usr/lib/python3.11/tkinter",
)  # fmt: skip
GIT_COMMANDS_KEPT = {"git", "git-sh-setup", "git-sh-i18n"}


class Layout:
    """A layout being written; `finish` writes its index."""

    def __init__(self, root: Path, keep: bool = False):
        self.root, self.blobs = root, root / "blobs/sha256"
        self.manifests: list[dict] = []
        if keep:
            self.manifests = json.loads((root / "index.json").read_text())["manifests"]
            return
        shutil.rmtree(root, ignore_errors=True)
        self.blobs.mkdir(parents=True)

    def blob(self, data: bytes) -> tuple[str, int]:
        digest = hashlib.sha256(data).hexdigest()
        path = self.blobs / digest
        if not path.exists():
            path.write_bytes(data)
        return f"sha256:{digest}", len(data)

    def image(self, reference: str, layers: list[bytes], config: dict) -> None:
        kept = [self.blob(layer) for layer in layers]
        body = {
            "created": "1970-01-01T00:00:00Z",
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [d for d, _ in kept]},
        }
        digest, size = self.blob(compact(body))
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": size},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": d, "size": s} for d, s in kept],
        }
        digest, size = self.blob(compact(manifest))
        self.manifests = [m for m in self.manifests if m["annotations"]["io.containerd.image.name"] != reference]
        self.manifests.append(
            {
                "mediaType": manifest["mediaType"],
                "digest": digest,
                "size": size,
                "annotations": {"org.opencontainers.image.ref.name": reference, "io.containerd.image.name": reference},
                "platform": {"architecture": "amd64", "os": "linux"},
            }
        )

    def finish(self) -> None:
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": sorted(self.manifests, key=lambda m: m["annotations"]["io.containerd.image.name"]),
        }
        wanted = set()
        for manifest in index["manifests"]:
            body = json.loads((self.blobs / manifest["digest"][7:]).read_text())
            wanted |= {manifest["digest"][7:], body["config"]["digest"][7:]} | {part["digest"][7:] for part in body["layers"]}
        for blob in self.blobs.iterdir():
            if blob.name not in wanted:
                blob.unlink()
        (self.root / "index.json").write_bytes(compact(index))
        (self.root / "oci-layout").write_bytes(compact({"imageLayoutVersion": "1.0.0"}))


def compact(body: dict) -> bytes:
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()


def layer(folder: Path) -> bytes:
    """A folder as a tar that depends on its names, contents and modes only."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            info = tarfile.TarInfo(str(path.relative_to(folder)))
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
                continue
            data = path.read_bytes()
            info.size, info.mode = len(data), 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def base_layer(rootfs: Path) -> bytes:
    """A mmdebstrap tar, pruned and sorted. Python's files keep their times, which its compiled files name."""
    out = io.BytesIO()
    with tarfile.open(rootfs) as source, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info in sorted(source.getmembers(), key=lambda i: i.name.removeprefix("./")):
            name = info.name.removeprefix("./")
            if name in (".", "") or any(name.startswith(p) for p in PRUNED) or info.ischr() or info.isblk():
                continue
            if name.startswith("usr/lib/git-core/") and name.rsplit("/", 1)[1] not in GIT_COMMANDS_KEPT:
                continue
            data = source.extractfile(info).read() if info.isreg() or info.islnk() else None
            kept = tarfile.TarInfo(name)
            kept.mode, kept.uid, kept.gid = info.mode, info.uid, info.gid
            kept.mtime = int(info.mtime) if "/python3" in name and info.isreg() else 0
            kept.type, kept.linkname = info.type, info.linkname
            if name == "usr/lib/git-core/git":
                data, kept.type, kept.linkname = None, tarfile.SYMTYPE, "../../bin/git"
            if data is not None:  # a hard link becomes a file: what it named may have been pruned
                kept.type, kept.linkname, kept.size = tarfile.REGTYPE, "", len(data)
            tar.addfile(kept, io.BytesIO(data) if data is not None else None)
    return out.getvalue()
