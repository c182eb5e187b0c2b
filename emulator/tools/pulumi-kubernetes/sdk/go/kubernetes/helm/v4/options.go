// Package v4 has the types of a chart's options, as the provider names them.
package v4

import "github.com/pulumi/pulumi/sdk/v3/go/pulumi"

// RepositoryOptsInput is any input.
type RepositoryOptsInput interface{ pulumi.Input }

// PostRendererInput is any input.
type PostRendererInput interface{ pulumi.Input }

// RepositoryOpts is where a chart comes from, and with which credentials.
type RepositoryOpts struct {
	CaFile   pulumi.AssetOrArchive
	CertFile pulumi.AssetOrArchive
	KeyFile  pulumi.AssetOrArchive
	Password *string
	Repo     *string
	Username *string
}

// PostRenderer is the command that changes what a chart renders.
type PostRenderer struct {
	Args    []string
	Command string
}
