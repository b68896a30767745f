package console

import (
	"context"

	"github.com/millrace/millrace/metadata"
)

// Admin is what the admin API calls: the parts of a broker, given by SetAdmin once they are open. All methods may be
// called from any goroutine. Refusals that a person can mend are *metadata.Error.
type Admin struct {
	// BrokerID is this broker.
	BrokerID metadata.BrokerID
	Cluster  Cluster
	Balancer Balancer
}

// Cluster is the metadata and the orders given to it; *metadata.Store is one. Orders may be given at any broker.
type Cluster interface {
	Image() *metadata.Image
	SetMaintenance(ctx context.Context, id metadata.BrokerID, on bool) error
	Decommission(ctx context.Context, id metadata.BrokerID, on bool) error
	UnregisterBroker(ctx context.Context, id metadata.BrokerID) error
}

// Balancer plans and makes moves; it runs at the controller, and may be asked at any broker.
type Balancer interface {
	// PlanBalance says what RunBalance would do now, and changes nothing.
	PlanBalance(ctx context.Context) (*metadata.BalancerPlan, error)
	// RunBalance plans and begins. It returns once the plan is committed, not once it is done.
	RunBalance(ctx context.Context) (*metadata.BalancerPlan, error)
	// BalanceStatus says what is under way, or was last: moves that have ended stay listed until the next plan.
	BalanceStatus(ctx context.Context) (*metadata.BalancerStatus, error)
	// CancelBalance drops what waits and takes back what moves. It returns how many moves it ended.
	CancelBalance(ctx context.Context) (int, error)
}
