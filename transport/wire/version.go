package wire

// Version numbers what nodes say to each other and keep on disk. A node speaks every version from Oldest to Newest, and with each
// peer the highest that both know. What outlives a conversation (an entry of a new kind, a file of a new form) is written only once
// the whole mesh knows it, and from then on nobody goes back: that is the mesh's floor, which each node keeps in its node.json.
type Version uint16

// What came with each version. Append only.
const (
	Version1 Version = 1 // the first
	Version2 Version = 2 // methods 14 to 31; entries that import a stream; beats between nodes
)

// Oldest is the lowest version that this build speaks; Newest, the highest, is in a file of its own for each build.
const Oldest = Version1

// Since is the version that a method came with: a node that speaks less does not serve it, and is not asked.
func (m Method) Since() Version {
	if m >= 14 && m < 32 {
		return Version2
	}
	return Version1
}
