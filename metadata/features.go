package metadata

// Feature levels of the metadata commands (D17). A command type is used only once the committed level is at least the
// level that introduced it, and the level is raised only when every registered broker knows it.
const (
	MinFeatureLevel uint32 = 1 // the oldest level this binary can work with
	MaxFeatureLevel uint32 = 3 // the newest level this binary knows

	// GroupsFeatureLevel is the level from which on there are groups and committed offsets: their commands, their records
	// of a snapshot, and the coordinator epoch.
	GroupsFeatureLevel uint32 = 2

	// TransactionsFeatureLevel is the level from which on there are transactions and pending offsets: their command and their
	// records of a snapshot.
	TransactionsFeatureLevel uint32 = 3
)
