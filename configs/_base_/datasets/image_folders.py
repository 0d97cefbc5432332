# Any data set of images and label maps: images/{training,validation}/* and annotations/{training,validation}/*.png with
# the same names. A pixel's value is the number of its class; 255 is ignored. classes.txt in the data root has the
# names, one per line, from class 0; without it the classes are the numbers found in the training maps.
_base_ = './ade20k.py'
data_root = 'data/folders/'
classes_from_data = True

train_dataloader = dict(dataset=dict(type='ImageFolderDataset', data_root=data_root, reduce_zero_label=False))
val_dataloader = dict(dataset=dict(type='ImageFolderDataset', data_root=data_root, reduce_zero_label=False))
test_dataloader = val_dataloader
