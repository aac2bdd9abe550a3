"""Studies of what mechanisms give and of what attacks on them find."""
