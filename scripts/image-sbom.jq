# Completes the SBOM of cargo-cyclonedx for an image: keeps the crates that are compiled into the program, adds the Debian packages,
# and removes the path of the checkout. scripts/image.sh passes $project, $crates, $packages and $sha256.

def lines: split("\n") | map(select(. != ""));

# The components by name and version. A crate can be in the program in several versions.
($crates | lines | map({ key: ., value: true }) | from_entries) as $compiled |
def is_compiled: $compiled["\(.name) \(.version)"] == true;

def debian_package:
    split(" ") as [$name, $version, $architecture] |
    ("pkg:deb/debian/\($name)@\($version | @uri)?arch=\($architecture)") as $purl |
    { type: "library", "bom-ref": $purl, $name, $version, scope: "required", purl: $purl };

($packages | lines | map(debian_package)) as $debian |
.metadata.component["bom-ref"] as $program |
[.components[] | select(is_compiled)] as $kept |
($kept | map({ key: .["bom-ref"], value: true }) | from_entries) as $refs |
.metadata.component.hashes = [{ alg: "SHA-256", content: $sha256 }] |
.components = $kept + $debian |
.dependencies = [
    .dependencies[]
    | select(.ref == $program or $refs[.ref])
    | if .dependsOn then .dependsOn |= map(select($refs[.])) else . end
    | if .ref == $program then .dependsOn += ($debian | map(.["bom-ref"])) else . end
] |
walk(if type == "string" then gsub("file://" + $project; "file://") | gsub("\\?download_url=file:.*"; "") else . end)
