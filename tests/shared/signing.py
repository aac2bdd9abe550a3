"""Checksums and manifest made to follow changed files, as somebody would who wants to pass for the producer."""

import json

from svysynth.publishing.public_folder import checksums, sums_text


def sign(public, **changes):
    """Make checksums and manifest follow the files, as somebody would who wants to pass for the producer."""
    path = public / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, content in changes.items():
        manifest[name] = manifest[name] | content if isinstance(content, dict) else content
    found = {name: digest for name, digest in checksums(public).items() if name not in ("manifest.json", "SHA256SUMS")}
    manifest["files"] = found | changes.get("files", {})
    path.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sign_sums(public)


def sign_sums(public):
    (public / "SHA256SUMS").unlink(missing_ok=True)
    (public / "SHA256SUMS").write_text(sums_text(checksums(public)))
