// The published Kubernetes provider, but for its schema, as code generators ask for that and the engine does not, and for
// its components (sdk/go.mod).
package main

import (
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

func main() {
	provider.Serve("kubernetes", version.Version, nil, nil)
}
